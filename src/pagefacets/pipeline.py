"""Documents to an index, queries to hits: the rooms wired together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import final

from torch import Tensor

from pagefacets.answers.search import Found, search
from pagefacets.data import ArrayLike, Hit, Page, as_matrix
from pagefacets.errors import InputError, Skipped
from pagefacets.evidence.explain import Explanation, Weights, explain, with_plan
from pagefacets.evidence.heatmap import Sheet
from pagefacets.evidence.places import Layout
from pagefacets.facets.compressor import Compressor
from pagefacets.index.format import Manifest
from pagefacets.index.reader import Reader, is_index
from pagefacets.index.writer import POOL, Writer
from pagefacets.pages.source import page_again
from pagefacets.recipe import Recipe
from pagefacets.update import Change, LeftOut, Update
from pagefacets.vectors.caching.manifest import EncoderNote
from pagefacets.vectors.encoder import Encoder
from pagefacets.vectors.pool import CalibrationPool
from pagefacets.vectors.supply import Source, Supply, supply

__all__ = ["Change", "Index"]


@final
class Index:
    """A folder with the facets of many pages, searched by text or by query vectors.

    An opened index stays at the version it was opened at while others write; `refresh` moves it on.
    """

    def __init__(self, path: Path, encoder: Encoder | None = None) -> None:
        self.path = path
        self.reader = Reader(path)
        self.change: Change | None = None
        if encoder is not None:
            self._check(encoder)
            self.__dict__["encoder"] = encoder

    @classmethod
    def open(cls, path: str | Path, encoder: Encoder | None = None) -> Index:
        """The index in a folder. No facets are read, and no model is loaded, until a search asks for them."""
        return cls(Path(path).absolute(), encoder)

    @classmethod
    def build(
        cls,
        path: str | Path,
        source: Source,
        encoder: str | Encoder | None = None,
        compressor: Compressor | None = None,
        pool: CalibrationPool | None = None,
        *,
        recipe: Recipe | None = None,
        dtype: str | None = None,
        full: bool | None = None,
        keep_going: bool = False,
        skipped: Skipped | None = None,
        progress: bool = False,
    ) -> Index:
        """Bring an index up to date with a source: new and changed pages are encoded, pages that are gone removed.

        What is not chosen is taken from `recipe`, else from the index that is there, else from the recipe's defaults.
        A build that was stopped, however it was stopped, goes on where it was when it is called again. `full` keeps the
        full vectors as well, in a column of their own, for search in two stages and for evidence side by side.
        """
        place = Path(path).absolute()
        reader = Reader(place) if is_index(place) else None
        held = reader.manifest if reader is not None and len(reader) else None
        model = encoder if isinstance(encoder, Encoder) else None
        if isinstance(encoder, str):
            model = Recipe(encoder={"name": encoder}).made_encoder()
        elif encoder is None and recipe is not None:
            model = recipe.made_encoder()
        if recipe is None:
            recipe = Recipe.default(pooled=pool is not None) if held is None else Recipe.of(held)
        left_out = LeftOut(skipped)
        found = supply(source, lambda: index.encoder, skipped=left_out if keep_going else None)
        if found.note is not None and encoder is None:
            model = None
        elif held is None and model is None:
            model = recipe.made_encoder()
        manifest = _asked(held, recipe, found, model, compressor, pool, dtype, full)

        def prepare(folder: Path) -> None:
            if pool is not None:
                pool.save(folder / POOL)

        with Writer.create(place, manifest, prepare) as writer:
            _same(writer.manifest, manifest, place)
            index = cls(place, model)
            index._update(Update(writer, found, left_out, keep_going=keep_going, progress=progress), whole=True)
        return index

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that made the index."""
        if not self.manifest.encoder.config:
            raise InputError(
                f"{self.path.name} was built from vectors whose encoder was not named: search it by vectors, or open "
                f"it with their encoder"
            )
        made = self.recipe.made_encoder()
        self._check(made)
        return made

    @cached_property
    def recipe(self) -> Recipe:
        """Every choice that was made for this index."""
        return Recipe.of(self.manifest)

    @cached_property
    def compressor(self) -> Compressor:
        """The compressor that made the facets."""
        return self.recipe.made_compressor()

    @cached_property
    def pool(self) -> CalibrationPool | None:
        """The calibration pool that lies in the index, where its method needed one."""
        if self.manifest.pool_sha256 is None:
            return None
        pool = CalibrationPool.load(self.path / POOL)
        if pool.sha256 != self.manifest.pool_sha256:
            raise InputError(f"{self.path / POOL} is not the pool this index was made with: put that one back")
        return pool

    @property
    def manifest(self) -> Manifest:
        return self.reader.manifest

    def __len__(self) -> int:
        return len(self.reader)

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, pages={len(self)}, encoder={self.manifest.encoder.id!r})"

    def refresh(self) -> Index:
        """See what was written since; returns this index."""
        self.reader = self.reader.latest()
        return self

    def add(
        self,
        source: Source,
        *,
        keep_going: bool = False,
        skipped: Skipped | None = None,
        progress: bool = False,
    ) -> Change:
        """Add the pages of documents; only new and changed ones are encoded, and pages a document lost are removed.

        Documents below a folder that was indexed before keep the names they have there.
        """
        left_out = LeftOut(skipped)
        with Writer.open(self.path) as writer:
            roots = {held.root for held in writer.held.values() if held.root is not None}
            found = supply(source, lambda: self.encoder, skipped=left_out if keep_going else None, roots=roots)
            _agree(self.manifest.encoder, found, self.path)
            return self._update(Update(writer, found, left_out, keep_going=keep_going, progress=progress), whole=False)

    def delete(self, *, document: str | None = None, page: str | None = None) -> int:
        """Remove a document by its source, or one page by its id; returns how many pages that were."""
        if (document is None) == (page is None):
            raise InputError("delete takes a document or a page: pass one of them")
        with Writer.open(self.path) as writer:
            gone = [name for name, held in writer.held.items() if name == page or held.source == document]
            if not gone:
                what = f"document {document!r}" if page is None else f"page {page!r}"
                raise InputError(f"{self.path.name} has no {what}: 'pagefacets info {self.path.name}' lists documents")
            removed = writer.delete(gone)
        self.refresh()
        return removed

    def compact(self, *, now: bool = False) -> None:
        """Rewrite what many small commits left, and let go of versions older than an hour; of all older ones if `now`.

        What was deleted is on the disk until its version is let go of.
        """
        with Writer.open(self.path) as writer:
            writer.compact(keep_versions=not now)
        self.refresh()

    def verify(self) -> list[str]:
        """Everything that is wrong with the index, a sentence each; empty where it is whole."""
        return list(self.reader.verify())

    def search(
        self, query: str | ArrayLike, k: int = 5, *, filter: str | None = None, rescore: int | None = None
    ) -> list[Hit]:
        """The k best pages for a query, best first, exactly by MaxSim over the facets.

        `filter` is a condition in SQL over id, source and number. `rescore` takes so many candidates by their facets
        and ranks them again by their full vectors, which the index must keep.
        """
        return self.search_many([query], k, filter=filter, rescore=rescore)[0]

    def search_many(
        self,
        queries: Sequence[str | ArrayLike],
        k: int = 5,
        *,
        filter: str | None = None,
        rescore: int | None = None,
    ) -> list[list[Hit]]:
        """The hits of several queries at once."""
        reader = self.reader
        vectors = self._encoded(queries)
        found = search(vectors, reader, k, condition=filter, rescore=rescore)
        return [
            [self._hit(reader, one, rank, query) for rank, one in enumerate(hits, start=1)]
            for hits, query in zip(found, queries, strict=True)
        ]

    def page(self, id: str) -> Page:
        """A page of the index as it lies in its document, which must still be where it was indexed."""
        listing = self.reader.listing
        place = listing.place(id)
        if place is None:
            raise InputError(f"{self.path.name} has no page {id!r}: 'pagefacets info {self.path.name}' lists documents")
        return page_again(listing.roots[place], listing.sources[place], id, listing.digests[place])

    def explain(self, query: str | ArrayLike, page_id: str, *, weights: Weights = "assignment") -> Explanation:
        """Why a page scores what it does for a query: the facet each token chose, and the places on the page behind it.

        weights="transport" weighs those places by the method's transport plan instead of by its assignment; the plan is
        computed again from the full vectors, which the index must keep. A document that is gone leaves a blank page.
        """
        return self._explained(self.reader, query, page_id, weights)

    def _explained(self, reader: Reader, query: str | ArrayLike, page_id: str, weights: Weights) -> Explanation:
        listing = reader.listing
        facets, full = reader.facets(page_id), reader.page(page_id)
        if weights == "transport":
            facets = with_plan(facets, full, self.compressor, self.pool)
        place = listing.place(page_id)
        assert place is not None  # noqa: S101  # its facets were found
        layout = Layout(**reader.layout(page_id), size=listing.sizes[place])
        again = (listing.roots[place], listing.sources[place], page_id, listing.digests[place])
        return explain(
            self._encoded([query])[0],
            facets,
            full=full,
            layout=layout,
            sheet=Sheet(layout, lambda: page_again(*again)),
            text=query if isinstance(query, str) else None,
            tokens=self.encoder.query_tokens(query) if isinstance(query, str) else None,
            source=listing.sources[place],
            number=listing.numbers[place],
            weights=weights,
        )

    def _hit(self, reader: Reader, found: Found, rank: int, query: str | ArrayLike) -> Hit:
        listing = reader.listing
        return Hit(
            score=found.score,
            page=found.page,
            rank=rank,
            source=listing.sources[found.place],
            number=listing.numbers[found.place],
            reason=lambda: self._explained(reader, query, found.page, "assignment"),
        )

    def _encoded(self, queries: Sequence[str | ArrayLike]) -> list[Tensor]:
        texts = [query for query in queries if isinstance(query, str)]
        encoded = iter(self.encoder.encode_queries(texts) if texts else [])
        vectors = [next(encoded) if isinstance(query, str) else as_matrix(query, "query") for query in queries]
        for one in vectors:
            if one.shape[1] != self.manifest.dim:
                raise InputError(
                    f"the query has dimension {one.shape[1]} and the index {self.manifest.dim}: "
                    f"encode it with {self.manifest.encoder.id}"
                )
        return vectors

    def _check(self, encoder: Encoder) -> None:
        held, theirs = self.manifest.encoder, EncoderNote.of(encoder)
        if not held.config and held.dim == theirs.dim:
            return
        difference = held.difference(theirs)
        if difference is not None:
            raise InputError(f"{self.path.name} was made by {difference}: open it with the encoder that made it")

    def _update(self, update: Update, *, whole: bool) -> Change:
        self.change = update.run(self.compressor, self.pool, whole=whole)
        self.refresh()
        return self.change


def _asked(
    held: Manifest | None,
    recipe: Recipe,
    found: Supply,
    model: Encoder | None,
    compressor: Compressor | None,
    pool: CalibrationPool | None,
    dtype: str | None,
    full: bool | None,
) -> Manifest:
    """The manifest of the index that is wanted."""
    if model is not None:
        note = EncoderNote.of(model)
        _agree(note, found, None)
    elif held is not None and (found.note is None or not found.note.config):
        note = held.encoder
    else:
        assert found.note is not None  # noqa: S101  # else there is a model
        note = found.note
    method = recipe.made_compressor() if compressor is None else compressor
    sha256 = None if pool is None else pool.sha256
    if sha256 is None and held is not None and Recipe.of(held).made_compressor() == method:
        sha256 = held.pool_sha256
    if method.needs_pool and sha256 is None:
        raise InputError(
            f"{method.name} needs a calibration pool: make one with 'pagefacets calibrate', or choose a method "
            f"without, such as ward"
        )
    return Manifest(
        encoder=note,
        compressor=method.config(),
        dtype=recipe.dtype if dtype is None else dtype,
        full=recipe.full if full is None else full,
        pool_sha256=sha256,
    )


def _agree(note: EncoderNote, found: Supply, place: Path | None) -> None:
    """Refuse vectors that were made by another encoder; of unnamed ones the index checks the dimension."""
    if found.note is None or not found.note.config:
        return
    difference = found.note.difference(note)
    if difference is not None:
        where = "" if place is None else f", which made {place.name}"
        raise InputError(f"{found.name} was made by {difference}{where}: encode its documents with that encoder")


def _same(held: Manifest, asked: Manifest, place: Path) -> None:
    """Refuse to go on with an index that was begun with other choices."""
    difference = held.encoder.difference(asked.encoder)
    mine, theirs = Recipe.of(held), Recipe.of(asked)
    if difference is None and mine.made_compressor() != theirs.made_compressor():
        difference = f"{dict(mine.compressor)} and not {dict(theirs.compressor)}"
    for name in ("dtype", "full", "pool_sha256"):
        if difference is None and getattr(held, name) != getattr(asked, name):
            difference = f"{name}={getattr(held, name)!r} and not {getattr(asked, name)!r}"
    if difference is not None:
        raise InputError(f"{place} was made by {difference}: choose another path, or the choices it was made with")
