"""Images: scans and photographs of pages, turned as their EXIF says, on white, in RGB.

Pillow warns of images beyond 89 million pixels and refuses them beyond twice that. Scans of large drawings are real, so
only the second bound holds here. A larger JPEG is decoded at half its size or less, which never holds the whole.
"""

from __future__ import annotations

import contextlib
import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase, BytesIO
from typing import IO, cast, final

import numpy as np
from PIL import Image, ImageFile

from pagefacets.data import Page, Words
from pagefacets.errors import PageError, Skipped
from pagefacets.pages.files import SourceFile, report

__all__ = ["SUFFIXES", "ImageContent", "decode", "image_pages", "image_size"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".tif", ".tiff", ".webp", ".gif", ".bmp")

_FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP")
_MOST_PIXELS = 178_956_970
_MOST_FRAMES = 100_000
_HEAD_BYTES = 16
# Everything that Pillow's readers raise on damaged files.
_FAULTS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    EOFError,
    OverflowError,
    AttributeError,
    ZeroDivisionError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)
_NEW_SUBFILE_TYPE = 254
_REDUCED = 1
_FULL_SCALES = (1.0, 255.0, 65535.0)


def image_pages(file: SourceFile, *, skipped: Skipped | None = None) -> list[Page]:
    """The pages of an image file: those of a TIFF, one of any other."""
    try:
        with file.open() as stream, _opened(stream, file.name) as image:
            frames = _frames(image)
            return [_page(file, image, number, frame, len(frames)) for number, frame in enumerate(frames)]
    except PageError as error:
        report(error, skipped)
        return []


def _page(file: SourceFile, image: ImageFile.ImageFile, number: int, frame: int, count: int) -> Page:
    place = file.name if count == 1 else f"{file.name}#{number}"
    image.seek(frame)
    _scale_down(image, place)
    return Page(place, file.name, number, _size(image), file.digest, ImageContent(file, frame, place))


@final
@dataclass(frozen=True)
class ImageContent:
    """One frame of an image file."""

    file: SourceFile
    frame: int
    place: str

    def image(self, longest: int | None) -> Image.Image:
        with self.file.open() as stream:
            return decode(stream, self.place, longest, frame=self.frame)

    def words(self) -> Words | None:
        return None


def decode(stream: BufferedIOBase, place: str, longest: int | None, *, frame: int = 0) -> Image.Image:
    """The picture as displayed, in RGB, its longer side at most `longest`; PageError names `place`."""
    with _opened(stream, place) as image:
        if frame:
            image.seek(frame)
        scale = _scale_down(image, place)
        turn = None if image.format == "TIFF" else _TURNS.get(_orientation(image))
        if scale > 1 or (longest is not None and image.format == "JPEG"):
            _draft(image, scale, longest)
        image.load()
        picture = _in_rgb(image)
        if turn is not None:
            picture = picture.transpose(turn)
        if longest is not None and max(picture.size) > longest:
            picture.thumbnail((longest, longest), Image.Resampling.LANCZOS, reducing_gap=3.0)
        return picture


def image_size(data: bytes) -> tuple[float, float] | None:
    """Width and height as displayed, from the image's head; None where it cannot be told."""
    try:
        with _opened(BytesIO(data), "") as image:
            return _size(image)
    except PageError:
        return None


@contextlib.contextmanager
def _opened(stream: BufferedIOBase, place: str) -> Iterator[ImageFile.ImageFile]:
    """The image with its head read; whatever goes wrong with it until the end of the block is a PageError.

    Pillow also warns, of large images and of damage that it gets over: neither is news where the image is read.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            with _identified(stream, place) as image:
                _scale_down(image, place)
                yield image
    except PageError:
        raise
    except MemoryError as error:
        raise PageError(place, "does not fit into memory: scale it down") from error
    except _FAULTS as error:
        raise PageError(place, f"is damaged or cut off ({error}): fetch it again") from error


def _identified(stream: BufferedIOBase, place: str) -> ImageFile.ImageFile:
    """The image by its first bytes, whatever its name says, and without Pillow's own bound on pixels."""
    Image.init()
    head = stream.read(_HEAD_BYTES)
    for name in _FORMATS:
        factory, accepts = Image.OPEN[name]
        if accepts is None or accepts(head) is True:
            stream.seek(0)
            return factory(cast("IO[bytes]", stream), "")
    raise PageError(place, f"is no image of a known kind ({', '.join(_FORMATS)}): convert it to PNG")


def _scale_down(image: ImageFile.ImageFile, place: str) -> int:
    """By how much a JPEG is to be decoded smaller to stay within bounds; PageError where an image is too large."""
    width, height = image.size
    if width * height <= _MOST_PIXELS:
        return 1
    # A progressive JPEG is held whole, at whatever size it is decoded.
    if image.format == "JPEG" and "progressive" not in image.info:
        for scale in (2, 4, 8):
            if width * height <= _MOST_PIXELS * scale * scale:
                return scale
    raise PageError(place, f"has {width} x {height} pixels, more than {_MOST_PIXELS:,}: scale it down")


def _draft(image: ImageFile.ImageFile, scale: int, longest: int | None) -> None:
    """Have a JPEG decoded at 1/2, 1/4 or 1/8 of its size, where that is as fine as three times what is wanted."""
    width, height = image.size
    if longest is not None:
        scale = max(scale, max(width, height) // (3 * longest))
    image.draft(None, (max(width // scale, 1), max(height // scale, 1)))


def _frames(image: ImageFile.ImageFile) -> list[int]:
    """The frames that are pages: all of a TIFF but its previews, the first of any other format."""
    if image.format != "TIFF":
        return [0]
    frames: list[int] = []
    count = getattr(image, "n_frames", 1)
    if count > _MOST_FRAMES:
        raise ValueError(f"{count} frames")
    for frame in range(count):
        image.seek(frame)
        if not int(getattr(image, "tag_v2", {}).get(_NEW_SUBFILE_TYPE, 0)) & _REDUCED:
            frames.append(frame)
    return frames or [0]


def _size(image: ImageFile.ImageFile) -> tuple[float, float]:
    width, height = image.size
    sideways = image.format != "TIFF" and _orientation(image) in _SIDEWAYS
    return (height, width) if sideways else (width, height)


def _orientation(image: ImageFile.ImageFile) -> int:
    """How the EXIF data says the picture is turned; 1, upright, where they say nothing that can be read."""
    if "exif" not in image.info and image.format == "PNG":
        return 1
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except _FAULTS:
        return 1
    return found if isinstance(found, int) else 1


def _in_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _in_eight_bits(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    over = image.convert("RGBA")
    picture = Image.new("RGB", over.size, "white")
    picture.paste(over, mask=over.getchannel("A"))
    return picture


def _in_eight_bits(image: Image.Image) -> Image.Image:
    """Numbers of more than eight bits as shades of grey: the least of the usual scales that holds them is white."""
    values = np.nan_to_num(np.asarray(image).astype(np.float32), posinf=0.0, neginf=0.0)
    highest = float(values.max())
    white = 65535.0 if image.mode.startswith("I;16") else next((s for s in _FULL_SCALES if highest <= s), highest)
    return Image.fromarray(np.clip(values * (255.0 / white), 0, 255).astype(np.uint8))
