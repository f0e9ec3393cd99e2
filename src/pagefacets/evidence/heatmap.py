"""A page with its evidence painted on it: words as filled boxes, patches as smooth cells, the text still legible."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError
from pagefacets.evidence.places import Layout, Spots
from pagefacets.vectors.formats.aside import replacing

__all__ = ["FADE", "FORMATS", "PALETTE", "Heatmap", "Sheet", "beside", "letters_font", "suffix_of", "tinted"]

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

# From little to much evidence. Lightness falls in equal steps, so the order shows in any colour vision and in grey, and
# black on the last colour still has a contrast of 4.5.
PALETTE = ("#faf7c0", "#fce398", "#ffcc7e", "#ffb56d", "#fe9c62", "#fe805d", "#fe5d60", "#f23f73", "#d93087")
# How much of the colour is added after the page was multiplied by it, for pages with dark parts.
GLOW = 0.2
_LITTLE, _MUCH = "little", "much"
# Pillow's own font has the letters of English: fonts for others, as common systems have them. No font has the last one.
FONTS = (
    "DejaVuSans.ttf",
    "LiberationSans-Regular.ttf",
    "arial.ttf",
    "Arial.ttf",
    "Arial Unicode.ttf",
    "NotoSansCJK-Regular.ttc",
    "wqy-zenhei.ttc",
    "PingFang.ttc",
    "msyh.ttc",
    "meiryo.ttc",
    "malgun.ttf",
)
_NO_LETTER = "\U0010ffff"
# Below this share of the largest weight the tint fades out.
FADE = 0.08
# The longer side of a page's picture; a smaller picture is enlarged to SMALLEST.
LONGEST, SMALLEST = 1200, 600
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


@final
@dataclass(frozen=True, eq=False)
class Heatmap:
    """A picture in RGB that can be looked at and saved."""

    image: Image.Image

    def save(self, path: str | Path) -> Path:
        """Write it as PNG, JPEG or WebP, whichever the suffix says."""
        target = Path(path)
        suffix = suffix_of(target, tuple(FORMATS))
        with replacing(target.resolve()) as partial:
            self.image.save(partial, format=FORMATS[suffix], quality=90)
        return target


def suffix_of(target: Path, known: Sequence[str]) -> str:
    """The format that a file's name asks for, once it is sure that it can be written."""
    suffix = target.suffix.lower()
    if suffix not in known:
        raise InputError(f"cannot tell the format of {str(target)!r}: end it in {', '.join(known)}")
    if not target.resolve().parent.is_dir():
        raise InputError(f"the folder {target.resolve().parent} does not exist: create it first")
    return suffix


@final
class Sheet:
    """What evidence is painted on: the picture of the page, read once, or a blank page that says why it is blank.

    `find` gives the page where its document lies, and raises PageError where it is gone or has changed.
    """

    def __init__(self, layout: Layout, find: Callable[[], Page] | None) -> None:
        self._layout = layout
        self._find = find

    @property
    def image(self) -> Image.Image:
        """The page in RGB."""
        return self._drawn[0]

    @property
    def missing(self) -> str | None:
        """Why the image is a blank page, where it is."""
        return self._drawn[1]

    @property
    def gone(self) -> str | None:
        """Why the page cannot be looked up in its document, where it cannot; nothing is drawn to tell."""
        return self._found if isinstance(self._found, str) else None

    @cached_property
    def _found(self) -> Page | str:
        if self._find is None:
            return "There is no picture of this page at hand."
        try:
            return self._find()
        except InputError as error:
            return f"The picture of this page cannot be read: {error}"

    @cached_property
    def _drawn(self) -> tuple[Image.Image, str | None]:
        if isinstance(self._found, str):
            return self._blank(self._found)
        try:
            image = self._found.image(LONGEST).convert("RGB")
        except PageError as error:
            return self._blank(f"The picture of this page cannot be read: {error}")
        longest = max(image.size)
        if longest < SMALLEST:
            image = image.resize(_scaled(image.size, SMALLEST), Image.Resampling.BICUBIC)
        elif longest > LONGEST:
            image = image.resize(_scaled(image.size, LONGEST), Image.Resampling.LANCZOS)
        return image, None

    def _blank(self, why: str) -> tuple[Image.Image, str]:
        shape = self._layout.size or self._layout.grid or (210, 297)
        image = Image.new("RGB", _scaled(shape, LONGEST), "white")
        draw = ImageDraw.Draw(image)
        edge = max(2, image.width // 300)
        draw.rectangle((0, 0, image.width - 1, image.height - 1), outline="#c8c8c8", width=edge)
        font = letters_font(why, max(9.0, min(image.size) / 45))
        margin = 2 * edge + image.width // 40
        lines = _wrapped(why, font, image.width - 2 * margin)
        draw.multiline_text((margin, margin), "\n".join(lines), font=font, fill="#767676", spacing=6)
        return image, why


def tinted(page: Image.Image, spots: Spots, weights: Float[Tensor, " S"]) -> Image.Image:
    """The page with each place tinted by its weight, relative to the largest."""
    field = _field(page.size, spots, weights)
    most = float(field.max())
    if most <= 0:
        return page.copy()
    share = field / most
    colours = _colours(share)
    strength = np.minimum(share / FADE, 1)[..., None]
    under = np.asarray(page, dtype=np.float32) / 255
    multiplied = under * (1 - strength + strength * colours)
    screened = 1 - (1 - multiplied) * (1 - GLOW * strength * colours)
    return Image.fromarray((screened * 255).round().astype(np.uint8))


def beside(panels: Sequence[tuple[str, Image.Image]], note: str) -> Image.Image:
    """Pictures of one size side by side, each under its caption, over the colours' legend and a note."""
    width, height = panels[0][1].size
    gap = max(12, width // 40)
    size = max(11.0, min(22.0, width / 42))
    font = letters_font("".join(caption for caption, _ in panels) + note, size)
    captions = [_wrapped(caption, font, width) for caption, _ in panels]
    line = int(size * 1.4)
    head = gap + line * max(map(len, captions))
    total = gap + len(panels) * (width + gap)
    bar = min(220, width // 2)
    start = gap + round(font.getlength(_LITTLE)) + gap // 2
    stop = start + bar + gap // 2 + round(font.getlength(_MUCH)) + gap
    legend = _wrapped(note, font, total - gap - stop)
    sheet = Image.new("RGB", (total, head + height + 2 * gap + line * max(1, len(legend))), "white")
    draw = ImageDraw.Draw(sheet)
    for i, (caption, (_, image)) in enumerate(zip(captions, panels, strict=True)):
        left = gap + i * (width + gap)
        draw.multiline_text((left, gap // 2), "\n".join(caption), font=font, fill="#1a1a1a", spacing=size * 0.2)
        sheet.paste(image, (left, head))
        draw.rectangle((left - 1, head - 1, left + width, head + height), outline="#c8c8c8")
    foot = head + height + gap
    scale = (_colours(np.linspace(0, 1, bar, dtype=np.float32)[None]) * 255).round().astype(np.uint8)
    draw.text((gap, foot), _LITTLE, font=font, fill="#6a6a6a")
    sheet.paste(Image.fromarray(scale).resize((bar, line), Image.Resampling.NEAREST), (start, foot))
    draw.text((start + bar + gap // 2, foot), _MUCH, font=font, fill="#6a6a6a")
    draw.multiline_text((stop, foot), "\n".join(legend), font=font, fill="#1a1a1a", spacing=size * 0.2)
    return sheet


def _field(size: tuple[int, int], spots: Spots, weights: Float[Tensor, " S"]) -> Float[np.ndarray, "H W"]:
    """The weight at each pixel: cells smoothed into each other, boxes flat, the larger where they meet."""
    width, height = size
    field = np.zeros((height, width), dtype=np.float32)
    cells = spots.cell >= 0
    if spots.grid is not None and bool((weights[cells] > 0).any()):
        patches = torch.zeros(spots.grid[0] * spots.grid[1])
        patches[spots.cell[cells]] = weights[cells].float()
        small = Image.fromarray(patches.view(spots.grid[1], spots.grid[0]).numpy())
        smooth = np.asarray(small.resize(size, Image.Resampling.BICUBIC))
        field = smooth.clip(0, float(patches.max()))
    boxes = Image.fromarray(np.zeros_like(field))
    draw = ImageDraw.Draw(boxes)
    pad = max(1, round(max(size) / 600))
    for spot in torch.argsort(weights, stable=True).tolist():
        weight = float(weights[spot])
        if cells[spot] or weight <= 0:
            continue
        left, top, right, bottom = (spots.corners[spot].double().numpy() * (width, height, width, height)).round()
        draw.rounded_rectangle((left - pad, top - pad, right + pad - 1, bottom + pad - 1), 2 * pad, fill=weight)
    most: NDArray[np.float32] = np.maximum(field, np.asarray(boxes))
    return most


def _colours(share: Float[np.ndarray, "H W"]) -> Float[np.ndarray, "H W 3"]:
    stops = np.linspace(0, 1, len(PALETTE))
    table = _table().astype(np.float32) / 255
    mixed: NDArray[np.float64] = np.stack([np.interp(share, stops, table[:, i]) for i in range(3)], axis=-1)
    return mixed.astype(np.float32)


def _table() -> UInt8[np.ndarray, "C 3"]:
    table: NDArray[np.uint8] = np.array([list(bytes.fromhex(colour[1:])) for colour in PALETTE], dtype=np.uint8)
    return table


def _scaled(size: Sequence[float], longest: int) -> tuple[int, int]:
    factor = longest / max(size)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def letters_font(text: str, size: float) -> Font:
    """The font that comes with Pillow, or one of the system's where that lacks a letter of the text."""
    own = ImageFont.load_default(size)
    if _missing(own, text) == 0:
        return own
    fonts: list[Font] = [own]
    for name in FONTS:
        with contextlib.suppress(OSError):
            fonts.append(ImageFont.truetype(name, size))
    return min(fonts, key=lambda font: _missing(font, text))


def _missing(font: Font, text: str) -> int:
    """How many letters a font draws as its box for unknown ones."""
    unknown = bytes(font.getmask(_NO_LETTER))
    return sum(bytes(font.getmask(letter)) == unknown for letter in set(text) if letter.isprintable())


def _wrapped(text: str, font: Font, width: float) -> list[str]:
    """Lines no wider than `width`; a word that is wider is broken."""
    lines = [""]
    for word in "".join(c if c.isprintable() else " " for c in text).split():
        wider = f"{lines[-1]} {word}".strip()
        if font.getlength(wider) <= width:
            lines[-1] = wider
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if lines[-1] and font.getlength(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return lines
