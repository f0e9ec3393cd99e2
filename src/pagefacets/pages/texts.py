"""Pages given as text alone, and lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from pagefacets.data import Page, Words
from pagefacets.errors import InputError, PageError
from pagefacets.pages.files import digest_of, readable
from pagefacets.pages.letters import clean

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["TextContent", "json_lines", "text_pages", "words_of"]


def words_of(text: str) -> Words:
    """The words of a given text: without boxes, and none at all where it is blank."""
    return Words(tuple(clean(text).split()))


@final
@dataclass(frozen=True)
class TextContent:
    """A page of which only the text is known."""

    place: str
    text: str

    def image(self, longest: int | None) -> Image:
        raise PageError(self.place, "is given as text and has no image: use an encoder of text, such as 'words'")

    def words(self) -> Words | None:
        return words_of(self.text)


def text_pages(path: Path) -> list[Page]:
    """The pages of a file with an "id" and a "text" in each line."""
    pages = []
    for number, (where, line) in enumerate(json_lines(path)):
        name, text = line.get("id"), line.get("text")
        if not isinstance(name, str | int) or not isinstance(text, str):
            raise InputError(f'{where} is no page: write {{"id": "...", "text": "..."}}')
        digest = digest_of(text.encode("utf-8", "surrogatepass"))
        pages.append(Page(str(name), path.name, number, None, digest, TextContent(str(name), text)))
    return pages


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line of a file as a JSON object, with words for where it stands; blank lines are passed over."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                where = f"{readable(path.name)}, line {number},"
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InputError(f"{where} is not JSON ({error}): write one object per line") from error
                if not isinstance(value, dict):
                    raise InputError(f"{where} is a JSON {type(value).__name__}, not an object: write {{...}}")
                yield where, value
    except UnicodeDecodeError as error:
        raise InputError(f"{readable(path.name)} is not UTF-8 ({error.reason}): save it as UTF-8") from error
