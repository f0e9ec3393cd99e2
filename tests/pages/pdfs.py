"""PDFs written by hand: text at known places, boxes, rotation, forms, encryption, and page trees that lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Sheet", "encrypted", "pdf", "show", "with_form"]

_HELVETICA = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding"
_FIRST_PAGE = 10


@dataclass(frozen=True)
class Sheet:
    """One page: what it draws, its MediaBox, and whatever else its dictionary says."""

    content: str = ""
    media: tuple[float, ...] = (0, 0, 612, 792)
    extra: str = ""


def show(text: str, x: float, y: float, size: float = 24, *, turn: str = "1 0 0 1", font: str = "F1") -> str:
    """The operators that write `text` from (x, y); `turn` is the matrix of its line."""
    escaped = "".join(rf"\{ord(letter):03o}" for letter in text)
    return f"BT /{font} {size} Tf {turn} {x} {y} Tm ({escaped}) Tj ET\n"


def pdf(
    sheets: list[Sheet],
    *,
    count: int | None = None,
    letters: dict[int, str] | None = None,
    catalog: str = "",
    trailer: str = "",
    more: dict[int, str] | None = None,
    cipher: Callable[[int, bytes], bytes] = lambda number, data: data,
) -> bytes:
    """The bytes of a PDF. In its second font, F2, the codes in `letters` stand for the texts given there."""
    kids = " ".join(f"{_FIRST_PAGE + 2 * number} 0 R" for number in range(len(sheets)))
    objects = {
        1: f"<< /Type /Catalog /Pages 2 0 R {catalog} >>",
        2: f"<< /Type /Pages /Count {len(sheets) if count is None else count} /Kids [{kids}] >>",
        3: f"{_HELVETICA} >>",
        4: f"{_HELVETICA} /ToUnicode 5 0 R >>",
        **(more or {}),
    }
    streams = {5: _meanings(letters or {65: "A"})}
    for number, sheet in enumerate(sheets):
        place = _FIRST_PAGE + 2 * number
        media = " ".join(f"{side:g}" for side in sheet.media)
        objects[place] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [{media}] /Contents {place + 1} 0 R "
            f"/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> {sheet.extra} >>"
        )
        streams[place + 1] = sheet.content
    bodies = {number: text.encode("latin-1") for number, text in objects.items()}
    for number, text in streams.items():
        data = cipher(number, text.encode("latin-1"))
        bodies[number] = b"<< /Length %d >>\nstream\n%b\nendstream" % (len(data), data)
    return _file(bodies, trailer)


def with_form(sheet: Sheet, value: str, rectangle: tuple[int, int, int, int]) -> bytes:
    """A PDF with a text field in which `value` was entered, and which the reader has to draw."""
    corners = " ".join(map(str, rectangle))
    field = (
        f"<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /V ({value}) /DA (/F1 18 Tf 0 g) /F 4 /Rect [{corners}] "
        f"/P {_FIRST_PAGE} 0 R >>"
    )
    form = "/AcroForm << /Fields [6 0 R] /NeedAppearances true /DR << /Font << /F1 3 0 R >> >> >>"
    page = Sheet(sheet.content, sheet.media, sheet.extra + " /Annots [6 0 R]")
    return pdf([page], catalog=form, more={6: field})


def encrypted(sheets: list[Sheet], *, user: str, owner: str) -> bytes:
    """A PDF under the standard security handler, revision 2 (RC4 with 40 bits), which `user` opens."""
    identity = bytes(range(16))
    padded = (user.encode() + _PADDING)[:32]
    stored_owner = _rc4(hashlib.md5((owner.encode() + _PADDING)[:32]).digest()[:5], padded)
    key = hashlib.md5(padded + stored_owner + (-4 & 0xFFFFFFFF).to_bytes(4, "little") + identity).digest()[:5]
    trailer = (
        f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{stored_owner.hex()}> /U <{_rc4(key, _PADDING).hex()}> >> "
        f"/ID [<{identity.hex()}> <{identity.hex()}>]"
    )

    def cipher(number: int, data: bytes) -> bytes:
        return _rc4(hashlib.md5(key + number.to_bytes(3, "little") + b"\0\0").digest()[:10], data)

    return pdf(sheets, trailer=trailer, cipher=cipher)


def _meanings(letters: dict[int, str]) -> str:
    lines = "".join(f"<{code:02X}> <{_utf16(text)}>\n" for code, text in letters.items())
    return (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /T def /CMapType 2 def\n"
        f"1 begincodespacerange <00> <FF> endcodespacerange\n{len(letters)} beginbfchar\n{lines}endbfchar\n"
        "endcmap CMapName currentdict /CMap defineresource pop end end"
    )


def _utf16(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").hex()


def _file(bodies: dict[int, bytes], trailer: str) -> bytes:
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    places = {}
    for number, body in sorted(bodies.items()):
        places[number] = len(out)
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start, size = len(out), max(bodies) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        out += b"%010d 00000 %b \n" % (places.get(number, 0), b"n" if number in places else b"f")
    return bytes(out + f"trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n".encode())


_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")


def _rc4(key: bytes, data: bytes) -> bytes:
    box = list(range(256))
    j = 0
    for i in range(256):
        j = (j + box[i] + key[i % len(key)]) % 256
        box[i], box[j] = box[j], box[i]
    out = bytearray()
    i = j = 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + box[i]) % 256
        box[i], box[j] = box[j], box[i]
        out.append(byte ^ box[(box[i] + box[j]) % 256])
    return bytes(out)
