"""The vectors of a reproduction: every data set by every retriever, encoded once into caches in one folder."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, final

from pagefacets.data import Page
from pagefacets.errors import InputError, PagefacetsError, Skipped
from pagefacets.evidence.labelled import Labelled, open_labelled
from pagefacets.evidence.retrievers import ModelChoice, Retriever
from pagefacets.pages.datasets import Dataset, Query, open_dataset
from pagefacets.vectors.cache import Cache, encode
from pagefacets.vectors.encoder import Encoder
from pagefacets.vectors.encoder import encoder as encoder_called

__all__ = ["TRAINING", "Caches"]

# What the retrievers were trained on, from which the paper draws its calibration pools.
TRAINING = "vidore/colpali_train_set"
# How much of it is drawn: the paper does not say.
TRAINING_QUERIES, TRAINING_PAGES, TRAINING_SHARDS = 5000, 500, 4

_Made = TypeVar("_Made")


@final
class Caches:
    """Caches under `folder`, made when they are first asked for; what cannot be made is tried once and says why.

    `say` is told what is begun. A data set is opened from its id or folder; `training` is where calibration pools come
    from, whose queries must not be those that are measured on.
    """

    def __init__(
        self,
        folder: Path,
        models: ModelChoice,
        *,
        training: str = TRAINING,
        device: str | None = None,
        keep_going: bool = False,
        skipped: Skipped | None = None,
        seed: int = 0,
        progress: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder, self.models, self.training, self.seed = folder, models, training, seed
        self.device, self._keep_going, self._skipped = device, keep_going, skipped
        self.progress, self.say = progress, say
        self._held: dict[tuple[str, ...], object] = {}
        self._failed: dict[tuple[str, ...], str] = {}
        self._loaded: tuple[tuple[str, ...], Encoder] | None = None

    def encoder(self, model: str, **options: object) -> Encoder:
        """The retriever that the paper calls `model`; `options` go before its own."""
        one = self.models.find(model)
        key = ("encoder", model, repr(sorted(options.items())))
        if self._loaded is None or self._loaded[0] != key:
            # Only the last one is kept: several would not fit a GPU together.
            self._loaded = None
            self._loaded = (key, self._tried(key, lambda: _encoder(one, {**one.options, **options}, self.device)))
        return self._loaded[1]

    def dataset(self, place: str) -> Dataset:
        """The data set at an id on the hub or in a folder."""
        return self._once(("data", place), lambda: open_dataset(place, skipped=self._report))

    def labelled(self, model: str, place: str, column: str) -> Labelled:
        """A data set encoded by a retriever, under the name of its column."""
        cache = self._once(("cache", model, place), lambda: self._encoded(model, place))
        made = ("labelled", model, place, column)
        return self._once(made, lambda: dataclasses.replace(open_labelled(cache), name=column))

    def calibration(self, model: str) -> Cache:
        """A sample of the training queries and pages, encoded by a retriever."""
        return self._once(("training", model), lambda: self._trained(model))

    def asked(self, model: str, name: str, pages: Sequence[Page], queries: Sequence[Query]) -> Cache:
        """Pages at hand with queries of their own, encoded by a retriever into the cache `name`."""
        made = self.encoder(model)
        self.say(f"{len(queries):,} questions about {len(pages):,} pages by {model}")
        return self._run(made, pages, self._place(model, name), queries)

    def _encoded(self, model: str, place: str) -> Cache:
        made = self.encoder(model)
        data = self.dataset(place)
        self.say(f"{data.name} by {model}")
        return self._run(made, data, self._place(model, _slug(place)), None)

    def _trained(self, model: str) -> Cache:
        made = self.encoder(model)
        data = self._once(("training data",), self._training_data)
        rng = random.Random(self.seed)  # noqa: S311
        queries = _drawn(rng, data.queries, TRAINING_QUERIES)
        pages = _drawn(rng, data.pages, TRAINING_PAGES)
        self.say(f"{len(queries):,} queries and {len(pages):,} pages of {data.name} by {model}")
        return self._run(made, pages, self._place(model, f"{_slug(self.training)}-{self.seed}"), queries)

    def _training_data(self) -> Dataset:
        return open_dataset(self.training, skipped=self._report, split="train", shards=TRAINING_SHARDS)

    def _run(
        self, made: Encoder, source: Dataset | Sequence[Page], place: Path, queries: Sequence[Query] | None
    ) -> Cache:
        place.parent.mkdir(parents=True, exist_ok=True)
        return encode(
            source,
            made,
            place,
            queries=queries,
            keep_going=self._keep_going,
            skipped=self._skipped,
            progress=self.progress,
        )

    def _place(self, model: str, name: str) -> Path:
        one = self.models.find(model)
        marks = "" if not one.stands_in else f"-{_short(f'{one.place} {sorted(one.own.items())!r}')}"
        return self.folder / f"{model}{marks}" / name

    @property
    def _report(self) -> Skipped | None:
        return (self._skipped or (lambda _: None)) if self._keep_going else None

    def _once(self, key: tuple[str, ...], make: Callable[[], _Made]) -> _Made:
        """What `make` makes, made once."""
        if key not in self._held:
            self._held[key] = self._tried(key, make)
        return self._held[key]  # type: ignore[return-value]  # one key, one type

    def _tried(self, key: tuple[str, ...], make: Callable[[], _Made]) -> _Made:
        """What `make` makes; where it cannot, it is not tried again."""
        if key not in self._failed:
            try:
                return make()
            except PagefacetsError as error:
                self._failed[key] = str(error)
        raise InputError(self._failed[key])


def _encoder(one: Retriever, options: Mapping[str, object], device: str | None) -> Encoder:
    assert one.place is not None  # noqa: S101  # ModelChoice.find gives none without
    chosen = {**options, **({} if device is None else {"device": device})}
    try:
        return encoder_called(one.place, **chosen)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None or unknown[1] not in chosen:
            raise
        raise InputError(f"{one.place}, as {one.name}, has no option {unknown[1]!r}: leave it out") from error


def _drawn(rng: random.Random, values: Sequence[_Made], most: int) -> list[_Made]:
    """A sample in its own order."""
    if len(values) <= most:
        return list(values)
    return [values[place] for place in sorted(rng.sample(range(len(values)), most))]


def _slug(place: str) -> str:
    """A folder's name for a data set: a hub id, or a local folder's name and a mark of where it lies."""
    path = Path(place)
    if path.is_dir():
        return f"{path.resolve().name}-{_short(str(path.resolve()))}"
    return place.replace("/", "--")


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
