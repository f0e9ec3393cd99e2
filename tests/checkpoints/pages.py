"""Pages whose images are drawn here: noise from a seed, in any shape."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from pagefacets.data import Page
from pagefacets.errors import PageError

# Three shapes, (width, height): upright, lying, and small.
SHAPES = ((100, 160), (300, 200), (64, 64))


@dataclass(frozen=True)
class Noise:
    width: int
    height: int
    seed: int

    def image(self, longest):
        rng = np.random.default_rng(self.seed)
        return Image.fromarray(rng.integers(0, 256, (self.height, self.width, 3), dtype=np.uint8))

    def words(self):
        return None


@dataclass(frozen=True)
class Broken:
    place: str

    def image(self, longest):
        raise PageError(self.place, "is truncated: save it again")

    def words(self):
        return None


def page(content, id):
    return Page(id, "drawn", 0, None, "0" * 32, content)


def pages(shapes=SHAPES, *, seed=0):
    return [page(Noise(*shape, seed + i), f"page-{i}") for i, shape in enumerate(shapes)]
