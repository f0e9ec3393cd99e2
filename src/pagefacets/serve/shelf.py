"""The index that is served: always whole, and the newest that was written."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from pagefacets.data import Page
from pagefacets.index.reader import TABLE
from pagefacets.pipeline import Index

if TYPE_CHECKING:
    from pagefacets.index.reader import Listing

__all__ = ["Shelf"]

# Documents are opened again for a page that is not among the latest so many.
_PAGES = 512


@final
class Shelf:
    """An index and its successors. `index` is replaced, never changed: a request takes it once and keeps it.

    `stale` says why the newest version cannot be read, while an older one is served.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._table = self._identity()
        self.index = Index.open(self.path)
        self.stale: str | None = None
        self._pages: OrderedDict[tuple[str, str], Page] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def listing(self) -> Listing:
        return self.index.reader.listing

    def warm(self) -> None:
        """Load the encoder and map the facets, so that the first question does not wait for it."""
        _warmed(self.index)

    def refresh(self) -> bool:
        """Go on to what was written since, once all of it is loaded; returns whether there was anything."""
        held, table = self.index, self._identity()
        try:
            if table == self._table and held.reader.latest() is held.reader:
                self.stale = None
                return False
            fresh = Index.open(self.path)
            if fresh.manifest.encoder == held.manifest.encoder:
                fresh = Index.open(self.path, held.encoder)
            _warmed(fresh)
        except Exception as error:  # noqa: BLE001 - whatever it is, the older version is served and health says why
            self.stale = self.without_paths(str(error))
            return False
        self.index, self._table, self.stale = fresh, table, None
        return True

    def page(self, id: str) -> Page:
        """A page that the index lists, from its document."""
        index = self.index
        place = index.reader.listing.place(id)
        key = (id, "" if place is None else index.reader.listing.digests[place])
        with self._lock:
            if key in self._pages:
                self._pages.move_to_end(key)
                return self._pages[key]
        page = index.page(id)
        with self._lock:
            self._pages[key] = page
            while len(self._pages) > _PAGES:
                self._pages.popitem(last=False)
        return page

    def without_paths(self, sentence: str) -> str:
        """A sentence for strangers: folders of this machine by their last names only."""
        places = {str(self.path), *(root for root in set(self.listing.roots) if root is not None)}
        for place in sorted(places, key=len, reverse=True):
            sentence = sentence.replace(place, Path(place).name)
        return sentence

    def _identity(self) -> Any:
        """Which folder lies at the path: an index that was removed and built again is another one."""
        try:
            about = (self.path / TABLE).stat()
        except OSError:
            return None
        return about.st_dev, about.st_ino


def _warmed(index: Index) -> None:
    # The roots, too: when the index is gone, its error has to be told without them.
    _ = index.reader.packed, index.reader.listing.place(""), index.reader.listing.roots
    index.encoder.encode_queries(["page"])
    index.search("page", k=1)
