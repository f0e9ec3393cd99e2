"""The compressor that another library is given, and the pool it reads, for vectors that come without their page."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.facets.compressor import Compressor
from pagefacets.facets.registry import compressor
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["Choice"]

# What these methods read of a page and other libraries do not hand on.
_ASKS_MORE = {
    "colchunk": "the patch grid",
    "docpruner": "the attention that each patch receives",
    "pool2d": "the patch grid",
    "prune-then-merge": "the attention that each patch receives",
}


@final
@dataclass(frozen=True)
class Choice:
    """A compressor that is ready to run on bare vectors."""

    compressor: Compressor
    pool: CalibrationPool | None

    @classmethod
    def of(
        cls,
        method: str | Compressor,
        pool: CalibrationPool | str | os.PathLike[str] | None,
        options: Mapping[str, object],
    ) -> Choice:
        """A method by name with its options, or a compressor as it is; the pool may be a file."""
        if isinstance(method, Compressor):
            if options:
                raise InputError(
                    f"{', '.join(options)} cannot change a {type(method).__name__} that is already configured: "
                    "set them where it is made, or name the method"
                )
            made = method
        else:
            made = compressor(method, **options)
        if made.name in _ASKS_MORE:
            raise InputError(
                f"{made.name} reads {_ASKS_MORE[made.name]}, and here a page is its vectors alone: "
                "take a method that runs on bare vectors, such as magic, ward or kmeans"
            )
        held = CalibrationPool.load(pool) if isinstance(pool, str | os.PathLike) else pool
        made.check_pool(held, 0 if held is None else held.dim, "the vectors", weighted=False)
        return cls(made, held)

    def compress(self, rows: Float[Tensor, "N p"]) -> Float[Tensor, "K p"]:
        """The vectors that are kept of one page or passage."""
        return self.compressor.compress(rows, self.pool).vectors

    def described(self) -> dict[str, object]:
        """The method, every option that is not its default, and which pool: what tells one choice from another."""
        defaults = {field.name: field.default for field in dataclasses.fields(self.compressor)}
        told: dict[str, object] = {"compressor": self.compressor.name}
        told |= {
            name: value for name, value in dataclasses.asdict(self.compressor).items() if value != defaults.get(name)
        }
        if self.compressor.needs_pool and self.pool is not None:
            told["pool"] = self.pool.sha256[:12]
        return told
