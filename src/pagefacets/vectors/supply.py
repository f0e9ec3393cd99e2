"""Where the vectors of pages come from: documents that an encoder reads, a cache, or a file of vectors."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

import torch

from pagefacets.data import Page, PageVectors, Words
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.pages.datasets import dataset_pages
from pagefacets.pages.files import digest_of, readable
from pagefacets.pages.folders import document_pages, folder_pages
from pagefacets.pages.source import open_pages
from pagefacets.vectors.caching.manifest import EncoderNote, Manifest, is_cache
from pagefacets.vectors.encoder import Encoder
from pagefacets.vectors.files import VectorFile, open_vectors
from pagefacets.vectors.formats import lance

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Source", "Supply", "supply", "unnamed"]

# A document, a folder of them, a dataset, a cache, a file of vectors; or pages, or their vectors.
Source: TypeAlias = "str | os.PathLike[str] | VectorFile | Sequence[Page] | Sequence[PageVectors]"

_FILES = {".safetensors", ".npz", ".arrow", ".feather", ".parquet", ".pt", ".lance"}


@dataclass(frozen=True, eq=False)
class Supply(ABC):
    """Pages and the way to their vectors. `note` is known where the vectors were made before, `root` where files lie.

    `name` is the source as an error calls it.
    """

    name: str
    pages: list[Page]
    root: str | None
    note: EncoderNote | None

    @abstractmethod
    def vectors(self, pages: Sequence[Page], *, skipped: Skipped | None) -> Iterator[PageVectors]:
        """The vectors of some of the pages, in order, with their ids."""


@final
@dataclass(frozen=True, eq=False)
class _Encoded(Supply):
    """Pages that are encoded when their vectors are asked for."""

    encoder: Callable[[], Encoder]

    def vectors(self, pages: Sequence[Page], *, skipped: Skipped | None) -> Iterator[PageVectors]:
        return self.encoder().encode_pages(pages, skipped=skipped) if pages else iter(())


@final
@dataclass(frozen=True, eq=False)
class _Stored(Supply):
    """Pages whose vectors are there."""

    file: Sequence[PageVectors]
    places: dict[str, int]

    def vectors(self, pages: Sequence[Page], *, skipped: Skipped | None) -> Iterator[PageVectors]:
        for page in pages:
            held = self.file[self.places[page.id]]
            yield PageVectors(held.vectors, held.grid, held.image_mask, held.importance, held.boxes, page.id)


@final
@dataclass(frozen=True)
class _Nowhere:
    """The content of a page of which only the vectors are at hand."""

    name: str

    def image(self, longest: int | None) -> Image:
        raise PageError(self.name, "was given as vectors: its document is not known here")

    def words(self) -> Words | None:
        return None


def supply(
    source: Source,
    encoder: Callable[[], Encoder],
    *,
    skipped: Skipped | None = None,
    roots: Iterable[str] = (),
) -> Supply:
    """The pages of a source; documents below one of `roots` are called by their path from there.

    `encoder` is asked for when pages have to be encoded, and not before. Documents that cannot be read raise PageError,
    or are reported to `skipped` and left out.
    """
    if isinstance(source, VectorFile):
        return _of_file(source)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if is_cache(path):
            return _of_cache(path)
        if path.suffix.lower() in _FILES and (path.is_file() or lance.is_table(path)):
            return _of_file(open_vectors(path))
        pages, root = _documents(str(source), path, roots, skipped)
        return _Encoded(readable(str(source)), pages, root, None, encoder)
    items = list(source)
    if items and isinstance(items[0], PageVectors):
        return _of_vectors("the vectors given", items)  # type: ignore[arg-type]  # the first speaks for all
    if not all(isinstance(item, Page) for item in items):
        raise InputError("a source is a path, or a sequence of pages or of their vectors: pass one of these")
    return _Encoded("the pages given", items, None, None, encoder)  # type: ignore[arg-type]


def unnamed(dim: int) -> EncoderNote:
    """The note of vectors that nobody has named the encoder of."""
    return EncoderNote("unnamed", dim, "", {})


def _documents(source: str, path: Path, roots: Iterable[str], skipped: Skipped | None) -> tuple[list[Page], str | None]:
    if not path.exists():
        return open_pages(source, skipped=skipped), source
    here = Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would follow links
    for root in sorted(roots, key=len, reverse=True):
        top = Path(root)
        if top in here.parents and top.is_dir() and dataset_pages(top) is None:
            name = here.relative_to(top).as_posix()
            if here.is_file():
                return document_pages(here, readable(name), skipped=skipped), root
            below = folder_pages(top, skipped=skipped)
            return [page for page in below if page.source.startswith(f"{name}/")], root
    return open_pages(path, skipped=skipped), str(here if here.is_dir() else here.parent)


def _of_cache(path: Path) -> Supply:
    manifest = Manifest.load(path)
    file = open_vectors(path)
    table = manifest.pages
    assert table is not None  # noqa: S101  # or open_vectors had refused it
    held = table.places
    columns = zip(held.ids, table.sources, table.numbers, table.sizes, held.digests, strict=True)
    pages = [Page(name, source, number, size, digest, _Nowhere(name)) for name, source, number, size, digest in columns]
    places = {name: place for place, name in enumerate(held.ids)}
    return _Stored(str(path), pages, None, manifest.encoder, file, places)


def _of_file(file: VectorFile) -> Supply:
    if file.kind == "facets":
        raise InputError(f"{file.name} already holds facets: index the page vectors they were made from")
    return _of_vectors(file.name, file)


def _of_vectors(name: str, vectors: Sequence[PageVectors]) -> Supply:
    pages = []
    for number, one in enumerate(vectors):
        called = str(number) if one.id is None else one.id
        raw = one.vectors.detach().cpu().contiguous()
        digest = digest_of(str(raw.dtype).encode(), raw.view(torch.uint8).numpy().tobytes())
        pages.append(Page(called, name, number, None, digest, _Nowhere(called)))
    places = {page.id: place for place, page in enumerate(pages)}
    dims = itertools.islice((one.dim for one in vectors), 1)
    return _Stored(name, pages, None, unnamed(next(dims, 1)), vectors, places)
