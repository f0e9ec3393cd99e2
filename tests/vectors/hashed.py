"""A small encoder that is real in every respect but its vectors, which are drawn from a hash of each word."""

import functools
import hashlib
import itertools
import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from pagefacets.data import Page, PageVectors, Words
from pagefacets.errors import PageError, Skipped
from pagefacets.vectors.encoder import Encoder


@dataclass(frozen=True)
class TextFile:
    """A page whose words are those of a text file, spread over it from left to right."""

    path: Path

    def image(self, longest: int | None) -> Image.Image:
        return Image.new("RGB", (8, 8), "white")

    def words(self) -> Words | None:
        text = self.path.read_text()
        if "unreadable" in text:
            raise PageError(self.path.stem, "is marked as unreadable")
        texts = tuple(text.split())
        edges = np.linspace(0, 1, len(texts) + 1, dtype=np.float32)
        boxes = np.stack([edges[:-1], np.zeros(len(texts)), edges[1:], np.ones(len(texts))], axis=1)
        return Words(texts, boxes.astype(np.float32))


def encode_elsewhere(
    root: Path, name: str, first: int, pause: float, largest: int | None = None, steps: int | None = None
) -> None:
    """What another process does: encodes pages of root/docs into root/cache, and tells in root/NAME what it did.

    `first` takes only so many pages, `largest` bounds the bytes of a file, as a full disk does; with `steps` the
    process is gone before it does one more thing to the disk that lasts.
    """
    from pagefacets.errors import PagefacetsError
    from pagefacets.vectors.cache import encode
    from pagefacets.vectors.caching import update

    update.PAGES_PER_SHARD = 4
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    if steps is not None:
        left = itertools.count(steps, -1)

        def dying(act, *arguments, **options):
            if next(left) == 0:
                os._exit(9)
            return act(*arguments, **options)

        for act in ("mkdir", "open", "fsync", "replace", "unlink"):
            setattr(os, act, functools.partial(dying, getattr(os, act)))
    encoder = HashedEncoder(pause=pause, journal=root / f"{name}.journal", ahead=2)
    try:
        cache = encode(text_pages(root / "docs")[:first], encoder, root / "cache", queries=["one", "two"])
    except PagefacetsError as error:
        said = str(error)
    else:
        said = f"{cache.run.encoded} {cache.run.kept} {cache.run.shared}"
    (root / f"{name}.said").write_text(said)


def text_pages(folder: Path) -> list[Page]:
    """The text files of a folder as pages, in the order of their names."""
    return [
        Page(
            path.stem,
            path.name,
            0,
            (612.0, 792.5),
            hashlib.blake2b(path.read_bytes()).hexdigest()[:16],
            TextFile(path),
        )
        for path in sorted(folder.glob("*.txt"))
    ]


@dataclass(frozen=True)
class HashedEncoder(Encoder):
    """`pause` slows it down, `asked` is told what it encodes, `journal` has a line for each page it was asked for."""

    salt: str = ""
    p: int = 16
    pause: float = field(default=0.0, compare=False)
    asked: list[str] = field(default_factory=list, compare=False)
    journal: Path | None = field(default=None, compare=False)
    ahead: int = field(default=0, compare=False)

    @property
    def id(self) -> str:
        return "hashed"

    @property
    def dim(self) -> int:
        return self.p

    @property
    def query_prefix(self) -> str:
        return "ask: "

    def config(self) -> Mapping[str, object]:
        return {"name": "hashed", "salt": self.salt, "p": self.p}

    def encode_pages(self, pages: Iterable[Page], *, skipped: Skipped | None = None) -> Iterator[PageVectors]:
        """Each page; `ahead` pages are read before the first is given out, as an encoder that batches does."""
        waiting = []
        for page in pages:
            waiting.append(page)
            if len(waiting) > self.ahead:
                yield from self._page(waiting.pop(0), skipped)
        for page in waiting:
            yield from self._page(page, skipped)

    def encode_queries(self, queries: Sequence[str]) -> list[Float[Tensor, "M p"]]:
        return [self._vectors([*self.query_prefix.split(), *query.split()]) for query in queries]

    def _page(self, page: Page, skipped: Skipped | None) -> Iterator[PageVectors]:
        self.asked.append(page.id)
        if self.journal is not None:
            with self.journal.open("a") as stream:
                stream.write(f"{page.id}\n")
        time.sleep(self.pause)
        try:
            words = page.words()
            if words is None:
                pixels = np.asarray(page.image(8)).reshape(-1, 3).tolist()
                words = Words(tuple(map(str, pixels)))
        except PageError as error:
            if skipped is None:
                raise
            skipped(error)
            return
        n = len(words)
        yield PageVectors(
            self._vectors(["page", *words.texts]),
            grid=(n, 1),
            image_mask=[False] + [True] * n,
            importance=torch.linspace(0, 1, n + 1),
            boxes=None if words.boxes is None else np.concatenate([np.full((1, 4), np.nan), words.boxes]),
            id=page.id,
        )

    def _vectors(self, words: Sequence[str]) -> Float[Tensor, "N p"]:
        rows = []
        for word in words:
            seed = hashlib.blake2b(f"{self.salt}:{word}".encode(), digest_size=8).digest()
            rows.append(np.random.default_rng(int.from_bytes(seed)).standard_normal(self.p))
        return torch.nn.functional.normalize(torch.tensor(np.array(rows), dtype=torch.float32), dim=1)
