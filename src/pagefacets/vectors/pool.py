"""The calibration pool: query tokens that tell the compressor what pages are asked about."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, final, get_args
from uuid import uuid4

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from pagefacets.data import ArrayLike, PageVectors, as_matrix
from pagefacets.errors import FileFormatError, InputError, PoolMismatchError
from pagefacets.products import one_thread
from pagefacets.vectors.calibrate import Variant, checked_units, choose, dictionary_of, read_pages, read_queries
from pagefacets.vectors.fingerprint import Fingerprint, Moments, Spread, is_foreign

__all__ = ["CalibrationPool", "PoolSizes", "is_pool"]

_FORMAT, _VERSION = "pagefacets-pool", 1


class PoolSizes(NamedTuple):
    """What a pool was chosen from: tokens of queries, patches of pages, and the visual dictionary's size."""

    tokens: int
    queries: int
    pages: int = 0
    patches: int = 0
    dictionary: int = 0


@final
@dataclass(frozen=True, eq=False, init=False, repr=False)
class CalibrationPool:
    """Query tokens, unit float32 rows, with what is known about where they come from.

    `CalibrationPool(tokens)` keeps ready-made tokens whole; `CalibrationPool.build` chooses them.
    """

    tokens: Float[Tensor, "L p"]
    backbone: str | None
    query_prefix: str | None
    source: str | None
    variant: str
    seed: int | None
    sizes: PoolSizes
    fingerprint: Fingerprint
    sha256: str

    def __init__(
        self,
        tokens: ArrayLike,
        *,
        backbone: str | None = None,
        query_prefix: str | None = None,
        source: str | None = None,
    ) -> None:
        rows = checked_units(as_matrix(tokens, "the pool's tokens"), "the pool's tokens")
        moments = Moments(rows.shape[1])
        moments.add(rows)
        self._fill(
            tokens=rows,
            backbone=backbone,
            query_prefix=query_prefix,
            source=source,
            variant="given",
            seed=None,
            sizes=PoolSizes(tokens=rows.shape[0], queries=1),
            fingerprint=Fingerprint(queries=moments.spread(), pages=None),
            sha256=_sha256(rows),
        )

    def _fill(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def _of(cls, **fields: object) -> CalibrationPool:
        pool = object.__new__(cls)
        pool._fill(**fields)
        return pool

    @classmethod
    def build(
        cls,
        query_vectors: Sequence[ArrayLike] | ArrayLike,
        page_vectors: Sequence[PageVectors | ArrayLike] | PageVectors | ArrayLike,
        *,
        size: int = 1000,
        dictionary: int = 200,
        seed: int = 0,
        variant: Variant = "magic",
        exclude: Sequence[ArrayLike] | ArrayLike | None = None,
        backbone: str | None = None,
        query_prefix: str | None = None,
        source: str | None = None,
        max_queries: int = 5000,
        max_pages: int = 500,
    ) -> CalibrationPool:
        """Choose `size` tokens of the queries that light up patches of the pages and differ from each other.

        `query_vectors` holds one (M, p) matrix per query; a single matrix is taken as one query, whole. Of more than
        `max_queries` queries or `max_pages` pages a sample is drawn with `seed`, and only what is drawn is read.
        `exclude` marks, nested like the queries, the rows to leave out. Of tokens fewer than `size` all are kept, in
        their order. `variant` drops the visual score, the diversity, or both ("random").
        """
        if variant not in get_args(Variant):
            raise InputError(f"variant must be one of {', '.join(get_args(Variant))}, got {variant!r}")
        counts = {"size": size, "dictionary": dictionary, "max_queries": max_queries, "max_pages": max_pages}
        for name, count in counts.items():
            if count < 1:
                raise InputError(f"{name} must be at least 1, got {count}")
        if seed < 0:
            raise InputError(f"seed must be 0 or more, got {seed}")
        with one_thread():
            tokens, queries = read_queries(query_vectors, exclude, seed=seed, most=max_queries)
            scored = variant in ("magic", "no-diversity")
            images, pages = read_pages(page_vectors, tokens.shape[1], seed=seed, most=max_pages, keep=scored)
            entries = None if images is None else dictionary_of(images, dictionary)
            chosen = choose(tokens, entries, size, variant, seed)
            return cls._of(
                tokens=chosen,
                backbone=backbone,
                query_prefix=query_prefix,
                source=source,
                variant=variant,
                seed=seed,
                sizes=PoolSizes(
                    tokens=tokens.shape[0],
                    queries=queries.groups,
                    pages=pages.groups,
                    patches=pages.rows,
                    dictionary=0 if entries is None else entries.shape[0],
                ),
                fingerprint=Fingerprint(queries=queries.spread(), pages=pages.spread()),
                sha256=_sha256(chosen),
            )

    @property
    def dim(self) -> int:
        return self.tokens.shape[1]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __repr__(self) -> str:
        return (
            f"CalibrationPool(tokens={len(self)}, dim={self.dim}, variant={self.variant!r}, "
            f"backbone={self.backbone!r}, source={self.source!r}, sha256={self.sha256[:12]!r})"
        )

    def to(self, device: str | torch.device) -> CalibrationPool:
        """The same pool with its tokens on `device`."""
        return self._of(**{**self.__dict__, "tokens": self.tokens.to(device)})

    def refuse_foreign(self, rows: Float[Tensor, "R p"], name: str, *, kind: Literal["page", "query"] = "page") -> None:
        """Raise PoolMismatchError where `rows` cannot come from the space this pool was built in.

        Another dimension never can. Otherwise the rows of a page, or better of several, are held against the pages
        (or the queries) the pool was built from; rows too few or too alike to tell are let through, and a pool of
        ready-made tokens knows only its dimension.
        """
        maker = "of an unrecorded encoder" if self.backbone is None else f"of {self.backbone}"
        if rows.shape[1] != self.dim:
            raise PoolMismatchError(
                f"the vectors of {name} have dimension {rows.shape[1]} but the calibration pool {maker} has dimension "
                f"{self.dim}: build a pool with the encoder of these vectors"
            )
        spread = self.fingerprint.pages if kind == "page" else self.fingerprint.queries
        if spread is not None and is_foreign(checked_units(rows, name), spread):
            raise PoolMismatchError(
                f"the vectors of {name} lie in another embedding space than the {kind} vectors behind the calibration "
                f"pool {maker}: build a pool with the encoder of these vectors"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the pool as one safetensors file, beside its place first and then moved into it."""
        target = Path(path)
        if not target.parent.is_dir():
            raise InputError(f"cannot write the pool to {target}: there is no folder {target.parent}, create it first")
        if target.exists() and not is_pool(target):
            raise InputError(f"{target} is no calibration pool and would be written over: name another path")
        tensors = {"tokens": self.tokens.cpu().contiguous()}
        header: dict[str, str] = {
            "format": _FORMAT,
            "version": str(_VERSION),
            "dim": str(self.dim),
            "variant": self.variant,
            "sha256": self.sha256,
            **{f"sizes.{name}": str(count) for name, count in self.sizes._asdict().items()},
        }
        for name in ("backbone", "query_prefix", "source", "seed"):
            if (value := getattr(self, name)) is not None:
                header[name] = str(value)
        for kind, spread in (("queries", self.fingerprint.queries), ("pages", self.fingerprint.pages)):
            if spread is not None:
                tensors |= {f"{kind}.{part}": getattr(spread, part) for part in ("mean", "directions", "energy")}
                header |= {f"{kind}.groups": str(spread.groups), f"{kind}.agreement": repr(spread.agreement)}
        header["sha256.fingerprint"] = _sha256(*(tensors[name] for name in sorted(tensors) if name != "tokens"))
        aside = target.with_name(f".{target.name}.{uuid4().hex}")
        try:
            with aside.open("xb") as file:
                file.write(to_bytes(tensors, header))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, expect: str | None = None) -> CalibrationPool:
        """Read a saved pool; with `expect`, refuse one that was not built with that backbone."""
        source = Path(path)
        if not source.is_file():
            raise InputError(f"there is no pool file {source}: CalibrationPool.build(...).save(path) makes one")
        try:
            with safe_open(source, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise FileFormatError(
                f"{source} is not a whole safetensors file ({error}): fetch or build it anew"
            ) from error
        pool = cls._parse(source, header, tensors)
        if expect is not None and pool.backbone is None:
            raise PoolMismatchError(
                f"{source} records no backbone, so it cannot be shown to belong to {expect}: "
                "build the pool with backbone=... or load it without expect"
            )
        if expect is not None and pool.backbone != expect:
            raise PoolMismatchError(
                f"{source} was built with {pool.backbone} but {expect} is expected: build a pool with {expect}"
            )
        return pool

    @classmethod
    def _parse(cls, path: Path, header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> CalibrationPool:
        _refuse_unreadable(path, header, tensors)
        try:
            spreads = {
                kind: Spread(
                    mean=tensors[f"{kind}.mean"],
                    directions=tensors[f"{kind}.directions"],
                    energy=tensors[f"{kind}.energy"],
                    groups=int(header[f"{kind}.groups"]),
                    agreement=float(header[f"{kind}.agreement"]),
                )
                for kind in ("queries", "pages")
                if f"{kind}.groups" in header
            }
            return cls._of(
                tokens=tensors["tokens"],
                backbone=header.get("backbone"),
                query_prefix=header.get("query_prefix"),
                source=header.get("source"),
                variant=header["variant"],
                seed=int(header["seed"]) if "seed" in header else None,
                sizes=PoolSizes(*(int(header[f"sizes.{name}"]) for name in PoolSizes._fields)),
                fingerprint=Fingerprint(queries=spreads["queries"], pages=spreads.get("pages")),
                sha256=header["sha256"],
            )
        except (KeyError, ValueError) as error:
            raise FileFormatError(f"{path} lacks or garbles the pool entry {error}: fetch or build it anew") from error


def is_pool(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a whole safetensors file that says it is a calibration pool."""
    try:
        with safe_open(Path(path), framework="pt") as file:
            return bool((file.metadata() or {}).get("format") == _FORMAT)
    except (SafetensorError, OSError):
        return False


def _refuse_unreadable(path: Path, header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    if header.get("format") != _FORMAT:
        raise FileFormatError(
            f"{path} is a safetensors file but not a calibration pool (its header has no format={_FORMAT}): "
            "CalibrationPool(tokens) makes a pool of a bare matrix"
        )
    version = header.get("version", "")
    if not version.isdecimal() or int(version) > _VERSION:
        raise FileFormatError(
            f"{path} has pool format version {version or 'none'} and this pagefacets reads up to {_VERSION}: upgrade it"
        )
    tokens = tensors.get("tokens")
    if tokens is None or tokens.ndim != 2 or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise FileFormatError(f"{path} does not hold its tokens as a float32 matrix: fetch or build it anew")
    prints = [tensors[name] for name in sorted(tensors) if name != "tokens"]
    recorded = (header.get("sha256"), header.get("sha256.fingerprint"), header.get("dim"))
    if recorded != (_sha256(tokens), _sha256(*prints), str(tokens.shape[1])):
        raise FileFormatError(f"{path} is damaged, its contents do not match its checksums: fetch or build it anew")


def _sha256(*arrays: Tensor) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.detach().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes())
    return digest.hexdigest()
