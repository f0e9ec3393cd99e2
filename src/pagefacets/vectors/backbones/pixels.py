"""From the image of a page to the pixels that a vision model takes, and the grid of cells it makes of them.

The image processors of transformers that work on PIL images are used everywhere: they need no torchvision, and a page
has the same pixels whether that is installed or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PixelMaker", "ShapedPixels", "SquarePixels"]

# What a preprocessor_config.json says that an image processor is made with; the rest names classes.
_SETTINGS = (
    "do_convert_rgb",
    "do_normalize",
    "do_rescale",
    "do_resize",
    "image_mean",
    "image_std",
    "resample",
    "rescale_factor",
)
_QWEN_SETTINGS = (*_SETTINGS, "patch_size", "temporal_patch_size", "merge_size")
_MOST_RATIO = 200


class PixelMaker(Protocol):
    """Makes the pixels of one page, and the grid of its cells as (columns, rows)."""

    def __call__(self, image: Image) -> tuple[Tensor, tuple[int, int]]: ...


@dataclass(frozen=True)
class SquarePixels:
    """Every page scaled to one square, whatever its shape, as PaliGemma takes them."""

    processor: Any
    patch: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], patch: int) -> SquarePixels:
        kept = {key: settings[key] for key in (*_SETTINGS, "size") if settings.get(key) is not None}
        return cls(_class("siglip", "Siglip")(**kept), patch)

    def __call__(self, image: Image) -> tuple[Tensor, tuple[int, int]]:
        pixels = self.processor(images=[image], return_tensors="pt")["pixel_values"]
        return pixels, (pixels.shape[-1] // self.patch, pixels.shape[-2] // self.patch)


@dataclass(frozen=True)
class ShapedPixels:
    """Pages in their own shape, scaled between two counts of pixels, as Qwen2-VL and Qwen2.5-VL take them."""

    processor: Any
    min_pixels: int
    max_pixels: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, min_pixels: int | None, max_pixels: int | None) -> ShapedPixels:
        kept = {key: settings[key] for key in _QWEN_SETTINGS if settings.get(key) is not None}
        made = _class("qwen2_vl", "Qwen2VL")
        size = {**made.size, **(settings.get("size") or {})}
        most = max_pixels or settings.get("max_pixels") or size.get("max_pixels") or size["longest_edge"]
        least = min_pixels or settings.get("min_pixels") or size.get("min_pixels") or size["shortest_edge"]
        processor = made(**kept, size={"shortest_edge": least, "longest_edge": most})
        cell = (processor.patch_size * processor.merge_size) ** 2
        if not cell <= most or not 0 < least <= most:
            raise InputError(
                f"pages cannot be scaled to between {least} and {most} pixels: max_pixels must be at least min_pixels "
                f"and one cell of {cell}"
            )
        return cls(processor, int(least), int(most))

    @property
    def merged(self) -> int:
        """How many patches on a side make one cell."""
        return int(self.processor.merge_size)

    def __call__(self, image: Image) -> tuple[Tensor, tuple[int, int]]:
        if max(image.size) > _MOST_RATIO * min(image.size):
            raise InputError(
                f"its image is {image.size[0]} x {image.size[1]} pixels, over {_MOST_RATIO} times as long as wide: "
                "cut it into pages"
            )
        made = self.processor(images=[image], return_tensors="pt")
        _, high, wide = made["image_grid_thw"][0].tolist()
        return made["pixel_values"], (wide // self.merged, high // self.merged)


def _class(family: str, name: str) -> Any:
    module = require(f"transformers.models.{family}.image_processing_pil_{family}", extra="hub")
    return getattr(module, f"{name}ImageProcessorPil")
