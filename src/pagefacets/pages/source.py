"""Where pages come from: a document, a folder of documents, or a dataset."""

from __future__ import annotations

from pathlib import Path

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.pages.datasets import dataset_pages
from pagefacets.pages.files import readable
from pagefacets.pages.folders import document_pages, folder_pages
from pagefacets.pages.hub import fetch, is_hub_id

__all__ = ["open_pages", "page_again"]

# Files of a dataset, which hold many documents.
_TABLES = (".jsonl", ".parquet")


def open_pages(source: str | Path, *, skipped: Skipped | None = None) -> list[Page]:
    """The pages of a file, of all documents in a folder, or of a dataset (a folder, or owner/name on the hub).

    Only what tells pages apart is read now; images and words are read when they are asked for. A document that cannot
    be read raises PageError, or is reported to `skipped` and left out.
    """
    path = Path(source)
    if path.is_dir():
        pages = dataset_pages(path)
        return folder_pages(path, skipped=skipped) if pages is None else pages
    if path.exists() or path.is_symlink():
        return document_pages(path, readable(path.name), skipped=skipped)
    if is_hub_id(str(source)):
        pages = dataset_pages(fetch(str(source)))
        if pages is None:
            raise InputError(
                f"{source} has no Parquet table of pages: download it and give the folder of its documents"
            )
        return pages
    raise InputError(f"there is no file or folder {readable(str(source))}: check the path")


def page_again(root: str | None, source: str, id: str, digest: str) -> Page:
    """The page called `id` of a document listed before, unless the document is gone or has changed."""
    if root is None:
        raise PageError(id, "was indexed from pages at hand, so its document is not known here")
    path = Path(root, source)
    gone = f"is no longer in {root} as it was indexed: index the documents again"
    try:
        alone = path.is_file() and path.suffix.lower() not in _TABLES
        pages = document_pages(path, source) if alone else open_pages(root)
    except PageError:
        raise
    except InputError as error:
        raise PageError(id, gone) from error
    for page in pages:
        if page.id == id and page.digest == digest:
            return page
    raise PageError(id, gone)
