"""The manifest of a cache: every choice behind its vectors, and which page and query lies where."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, final

from pagefacets.errors import FileFormatError, InputError
from pagefacets.vectors.encoder import Encoder
from pagefacets.vectors.formats.aside import replacing

__all__ = [
    "MANIFEST",
    "EncoderNote",
    "Manifest",
    "PageTable",
    "Places",
    "QueryTable",
    "ShardFile",
    "is_cache",
    "writing",
]

MANIFEST = "manifest.json"
_FORMAT = "pagefacets-cache"
_VERSION = 1
_OPENING = re.compile(rb'\s*\{\s*"format"\s*:\s*"' + _FORMAT.encode() + rb'"')


@final
@dataclass(frozen=True)
class EncoderNote:
    """What is recorded of an encoder: enough to tell another from it, and to make it again."""

    id: str
    dim: int
    query_prefix: str
    config: Mapping[str, object]

    @classmethod
    def of(cls, encoder: Encoder) -> EncoderNote:
        """The note of `encoder`, its config as JSON gives it back."""
        try:
            config = json.loads(json.dumps(dict(encoder.config()), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the config of encoder {encoder.id} cannot be written as JSON ({error}): give it plain values"
            ) from error
        return cls(encoder.id, encoder.dim, encoder.query_prefix, config)

    def difference(self, other: EncoderNote) -> str | None:
        """How another encoder differs from this one, or None where its vectors are the same."""
        if other.id != self.id:
            return f"{self.id} and not by {other.id}"
        for name in sorted({*self.config, *other.config}):
            mine, theirs = self.config.get(name), other.config.get(name)
            if mine != theirs:
                return f"{self.id} with {name}={mine!r} and not {name}={theirs!r}"
        for name in ("dim", "query_prefix"):
            if getattr(self, name) != getattr(other, name):
                return f"{self.id} with {name}={getattr(self, name)!r} and not {name}={getattr(other, name)!r}"
        return None


@final
@dataclass(frozen=True)
class ShardFile:
    """A finished shard: its file's name, how long the file is, and the BLAKE2b hash of its bytes."""

    name: str
    nbytes: int
    checksum: str


@final
@dataclass(frozen=True)
class Places:
    """Where the vectors of pages or queries lie: one entry for each in all lists but `files`.

    The i-th has `vectors[i]` vectors, page number `rows[i]` of the file `files[shards[i]]`.
    """

    ids: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    vectors: tuple[int, ...] = ()
    shards: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    files: tuple[ShardFile, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@final
@dataclass(frozen=True)
class PageTable:
    """The pages of a cache, in the order of its source."""

    places: Places
    sources: tuple[str, ...]
    numbers: tuple[int, ...]
    sizes: tuple[tuple[float, float] | None, ...]


@final
@dataclass(frozen=True)
class QueryTable:
    """The queries of a cache, in their order."""

    places: Places = Places()
    texts: tuple[str, ...] = ()
    languages: tuple[str | None, ...] = ()


@final
@dataclass(frozen=True)
class Manifest:
    """Everything a cache says of itself. `pages` is None until its first run has finished.

    `qrels` maps query id to page id to relevance; `skipped` holds the place of each page that was left out, and why.
    """

    encoder: EncoderNote
    source: str | None
    pages: PageTable | None = None
    queries: QueryTable = QueryTable()
    qrels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()
    pagefacets: str = field(default_factory=lambda: metadata.version("pagefacets"))

    def same_content(self, other: Manifest) -> bool:
        """Whether both say the same, whichever version of pagefacets wrote them."""
        return replace(self, pagefacets=other.pagefacets) == other

    def save(self, folder: Path) -> None:
        """Write the manifest into the folder of its cache, aside first and then in one step into its place."""
        head: dict[str, object] = {
            "format": _FORMAT,
            "version": _VERSION,
            "pagefacets": self.pagefacets,
            "dtype": "float16",
            "encoder": dict(self.encoder.__dict__),
            "source": self.source,
            "skipped": [{"place": place, "why": why} for place, why in self.skipped],
            "pages": None if self.pages is None else _page_columns(self.pages),
            "queries": _query_columns(self.queries),
            "qrels": self.qrels,
        }
        lines = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in head.items())
        with writing(folder), replacing(folder / MANIFEST) as partial:
            partial.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of the cache in `folder`."""
        try:
            about = (folder / MANIFEST).stat()
        except FileNotFoundError as error:
            raise InputError(f"{folder} is no cache, it holds no {MANIFEST}: pagefacets encode makes one") from error
        return cls._loaded(folder, about.st_ino, about.st_mtime_ns, about.st_size)

    @classmethod
    @functools.lru_cache(maxsize=2)
    def _loaded(cls, folder: Path, *_: int) -> Manifest:
        """The manifest as it was read before, if it is the same file still."""
        place = folder / MANIFEST
        try:
            content = json.loads(place.read_bytes())
            version = content["version"]
            parsed = _parsed(content) if version == _VERSION else None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise FileFormatError(
                f"{place} is damaged ({error}): put back a copy, or delete the folder and encode again"
            ) from error
        if parsed is None:
            raise FileFormatError(
                f"{folder} has version {version!r} of the cache layout and this pagefacets reads version {_VERSION}: "
                f"upgrade pagefacets"
            )
        return parsed


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the system says of a full or forbidden disk, as one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror}): mend that and run it again, finished shards stay"
        ) from error


def is_cache(path: Path) -> bool:
    """Whether `path` is the folder of a cache."""
    try:
        with (path / MANIFEST).open("rb") as stream:
            return _OPENING.match(stream.read(200)) is not None
    except OSError:
        return False


def _page_columns(table: PageTable) -> dict[str, object]:
    return {"source": table.sources, "number": table.numbers, "size": table.sizes, **_place_columns(table.places)}


def _query_columns(table: QueryTable) -> dict[str, object]:
    return {"text": table.texts, "language": table.languages, **_place_columns(table.places)}


def _place_columns(places: Places) -> dict[str, object]:
    return {
        "id": places.ids,
        "digest": places.digests,
        "vectors": places.vectors,
        "shard": places.shards,
        "row": places.rows,
        "files": [{"name": file.name, "bytes": file.nbytes, "blake2b": file.checksum} for file in places.files],
    }


def _parsed(content: Mapping[str, Any]) -> Manifest:
    encoder = content["encoder"]
    note = EncoderNote(**{name: encoder[name] for name in ("id", "dim", "query_prefix", "config")})
    if not isinstance(note.config, dict) or not isinstance(note.dim, int) or not isinstance(note.id, str):
        raise TypeError("its encoder is not described")
    table = None
    if content["pages"] is not None:
        pages, n = content["pages"], len(content["pages"]["id"])
        sizes = _column(pages, "size", n, list, type(None))
        table = PageTable(
            _places(pages, n),
            _column(pages, "source", n, str),
            _column(pages, "number", n, int),
            tuple(None if size is None else (size[0], size[1]) for size in sizes),
        )
    queries, n = content["queries"], len(content["queries"]["id"])
    asked = QueryTable(
        _places(queries, n), _column(queries, "text", n, str), _column(queries, "language", n, str, type(None))
    )
    return Manifest(
        encoder=note,
        source=content["source"],
        pages=table,
        queries=asked,
        qrels={query: dict(judged) for query, judged in content["qrels"].items()},
        skipped=tuple((entry["place"], entry["why"]) for entry in content["skipped"]),
        pagefacets=content["pagefacets"],
    )


def _places(columns: Mapping[str, Any], n: int) -> Places:
    files = tuple(ShardFile(entry["name"], entry["bytes"], entry["blake2b"]) for entry in columns["files"])
    if not all(isinstance(file.nbytes, int) and Path(file.name).name == file.name for file in files):
        raise ValueError("its list of files is garbled")
    places = Places(
        ids=_column(columns, "id", n, str),
        digests=_column(columns, "digest", n, str),
        vectors=_column(columns, "vectors", n, int),
        shards=_column(columns, "shard", n, int),
        rows=_column(columns, "row", n, int),
        files=files,
    )
    for name, values, least, below in (
        ("vectors", places.vectors, 1, None),
        ("shard", places.shards, 0, len(files)),
        ("row", places.rows, 0, None),
    ):
        if n and (min(values) < least or (below is not None and max(values) >= below)):
            raise ValueError(f"its column {name!r} is garbled")
    return places


def _column(columns: Mapping[str, Any], name: str, n: int, *kinds: type) -> tuple[Any, ...]:
    values: list[Any] = columns[name]
    if len(values) != n or not set(kinds).issuperset(map(type, values)):
        raise ValueError(f"its column {name!r} is garbled")
    return tuple(values)
