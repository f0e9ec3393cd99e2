"""Where a benchmark's calibration pools come from, and which queries may then be measured on.

| `pool` | pools | measured on |
|---|---|---|
| "split" | one from every second judged query, one from the others | for each, the queries it has not seen |
| a CalibrationPool, or a file of one | that pool | all judged queries |
| data with queries, e.g. a cache of training pages | chosen from its queries and pages | all judged queries |
| None | none: methods that read a pool cannot run | all judged queries |
"""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias, final

from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.evidence.labelled import Labelled, digest_of
from pagefacets.evidence.sweep import PoolSpec
from pagefacets.vectors.cache import Cache
from pagefacets.vectors.files import VectorFile, open_vectors
from pagefacets.vectors.pool import CalibrationPool, is_pool

__all__ = ["Fold", "Holdout", "PoolSource", "holdout"]

SPLIT = "split"

PoolSource: TypeAlias = "CalibrationPool | Cache | VectorFile | str | os.PathLike[str] | None"


@final
@dataclass(frozen=True)
class Fold:
    """Judged queries to measure on (positions in `Labelled.asked`), and those that the pool is chosen from."""

    measured: tuple[int, ...]
    calibration: tuple[int, ...] = ()


class Holdout(ABC):
    """How queries are held out from the ones measured on."""

    fixed: CalibrationPool | None = None

    def folds(self, data: Labelled) -> tuple[Fold, ...]:
        """What is measured with each pool; together all judged queries."""
        return (Fold(tuple(range(len(data.asked)))),)

    @abstractmethod
    def pool(self, data: Labelled, fold: Fold, spec: PoolSpec) -> CalibrationPool:
        """The pool for a fold of `data`, or InputError where there can be none."""

    @abstractmethod
    def identity(self) -> object:
        """What tells this source from others in the name of a cell."""

    def tokens(self, data: Labelled, fold: Fold) -> int | None:
        """How many query tokens there are to choose from, where a pool is chosen."""
        return None

    @property
    @abstractmethod
    def said(self) -> str:
        """The source in a sentence of the report."""


def holdout(source: PoolSource, seed: int) -> Holdout:
    """The source of pools that the argument `pool` of a benchmark names."""
    if source is None:
        return _Nothing()
    if isinstance(source, CalibrationPool):
        return _Given(source, "a calibration pool at hand")
    if isinstance(source, Cache):
        return _Chosen(source.pages, source.path.name, seed)
    if isinstance(source, VectorFile):
        return _Chosen(source, source.name, seed)
    if source == SPLIT:
        return _Split(seed)
    path = Path(source)
    if is_pool(path):
        return _Given(CalibrationPool.load(path), f"the pool {path.name}")
    if not path.exists():
        raise InputError(f"there is no pool {path}: name a pool, a cache or a file of vectors with queries, or 'split'")
    return _Chosen(open_vectors(path), path.name, seed)


@final
class _Nothing(Holdout):
    said = "no pool"

    def pool(self, data: Labelled, fold: Fold, spec: PoolSpec) -> CalibrationPool:
        raise InputError("it needs a calibration pool, and none was given: pass pool='split', or a pool")

    def identity(self) -> object:
        return None


@final
@dataclass(frozen=True)
class _Given(Holdout):
    given: CalibrationPool
    name: str

    @property
    def fixed(self) -> CalibrationPool:  # type: ignore[override]
        return self.given

    def pool(self, data: Labelled, fold: Fold, spec: PoolSpec) -> CalibrationPool:
        if spec != PoolSpec():
            raise InputError(
                f"it chooses its own calibration pool ({', '.join(f'{k}={v}' for k, v in asdict(spec).items())}), and "
                f"{self.name} is chosen already: pass pool='split', or data with queries to choose from"
            )
        return self.given

    def identity(self) -> object:
        return {"sha256": self.given.sha256}

    @property
    def said(self) -> str:
        return f"{self.name}, {len(self.given):,} tokens"


@final
@dataclass(frozen=True)
class _Chosen(Holdout):
    pages: VectorFile
    name: str
    seed: int

    @functools.cached_property
    def digest(self) -> str:
        return digest_of(self.pages, self.pages.queries())

    def __post_init__(self) -> None:
        if not self.pages.queries():
            raise InputError(f"{self.name} holds no query vectors to choose a pool from: encode it with its queries")

    def pool(self, data: Labelled, fold: Fold, spec: PoolSpec) -> CalibrationPool:
        return CalibrationPool.build(self.pages.queries(), self.pages, seed=self.seed, source=self.name, **asdict(spec))

    def tokens(self, data: Labelled, fold: Fold) -> int:
        return sum(map(len, self.pages.queries()))

    def identity(self) -> object:
        return {"chosen from": self.digest, "seed": self.seed}

    @property
    def said(self) -> str:
        return f"chosen from the {len(self.pages.queries()):,} queries and {len(self.pages):,} pages of {self.name}"


@final
@dataclass(frozen=True)
class _Split(Holdout):
    seed: int

    def folds(self, data: Labelled) -> tuple[Fold, ...]:
        asked = range(len(data.asked))
        if len(asked) < 2:
            raise InputError(f"{data.name} has {len(asked)} judged query, too few to split: pass a pool")
        even, odd = tuple(asked[::2]), tuple(asked[1::2])
        return Fold(odd, even), Fold(even, odd)

    def pool(self, data: Labelled, fold: Fold, spec: PoolSpec) -> CalibrationPool:
        return CalibrationPool.build(
            self._queries(data, fold), data.pages, seed=self.seed, source=data.name, **asdict(spec)
        )

    def tokens(self, data: Labelled, fold: Fold) -> int:
        return sum(map(len, self._queries(data, fold)))

    @staticmethod
    def _queries(data: Labelled, fold: Fold) -> list[Tensor]:
        return [data.queries[data.asked[place]] for place in fold.calibration]

    def identity(self) -> object:
        return {"split": "every second query", "seed": self.seed}

    @property
    def said(self) -> str:
        return "from every second query, measured on the others, both ways"
