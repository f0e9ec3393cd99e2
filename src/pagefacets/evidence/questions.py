"""Questions about pages, in a file that grows page by page and is taken up again where it was left."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.evidence.asker import Answer, Asker, prompt_for
from pagefacets.evidence.parsing import questions_in
from pagefacets.progress import track
from pagefacets.vectors.caching.locks import FileLock
from pagefacets.vectors.formats.aside import replacing

__all__ = ["Questions", "ask_questions"]

# More questions than a page has room for, or a model can keep apart.
MOST = 100
# How each line of the file begins.
START = b'{"id": "'


@final
@dataclass(frozen=True)
class Questions:
    """What a run of `ask_questions` leaves: `pages` of those given have their questions, `asked` of them since now."""

    path: Path
    model: str
    pages: int
    questions: int
    asked: int
    skipped: int

    def to_dict(self) -> dict[str, object]:
        """The same as JSON takes it."""
        return {**asdict(self), "path": str(self.path)}


def ask_questions(
    pages: Sequence[Page],
    asker: Asker,
    output: str | Path,
    *,
    count: int = 5,
    attempts: int = 3,
    skipped: Skipped | None = None,
    progress: bool = False,
) -> Questions:
    """Have a model ask `count` questions about each page, and write them to `output`, one JSON object to a line.

    A page's questions are written as soon as they are there; a later run asks only about pages that are missing or
    have changed. An answer with too few questions is asked for again, `attempts` times in all. A page that cannot be
    read or about which nothing usable is written raises PageError, or is reported to `skipped` and left out.
    """
    path = Path(output)
    if not 1 <= count <= MOST:
        raise InputError(f"count must lie between 1 and {MOST}, got {count}")
    if attempts < 1:
        raise InputError(f"attempts must be at least 1, got {attempts}")
    if len({page.id for page in pages}) < len(pages):
        raise InputError("two pages have the same id: questions could not be told apart")
    if path.suffix.lower() != ".jsonl" or path.is_dir():
        raise InputError(f"questions are written as JSON lines, got {path}: name a file that ends in .jsonl")
    if not path.resolve().parent.is_dir():
        raise InputError(f"the folder {path.resolve().parent} does not exist: create it first")
    with _alone(path):
        book = _Book(path, pages, model=asker.id, count=count)
        missing = [page for page in pages if page.id not in book]
        failed = 0
        with closing(_rounds(missing, asker, count, attempts)) as rounds:
            shown = progress and bool(missing)
            for page, found in track(rounds, len(missing), "asking", unit="pages") if shown else rounds:
                if not isinstance(found, PageError):
                    book.add(page, found)
                elif skipped is None:
                    raise found
                else:
                    skipped(found)
                    failed += 1
        book.arrange()
    there = len(pages) - failed
    return Questions(path, asker.id, there, there * count, len(missing) - failed, failed)


def _rounds(
    pages: Sequence[Page], asker: Asker, count: int, attempts: int
) -> Generator[tuple[Page, tuple[str, ...] | PageError], None, None]:
    """Each page once, with its questions or what is wrong; those that failed to parse come again in the next round."""
    waiting = pages
    prompt = prompt_for(count)
    for attempt in range(attempts):
        if not waiting:
            return
        again = []
        # Closed here and now where the run ends early: what is under way is not to be waited for.
        with closing(asker.answers(waiting, prompt, attempt=attempt)) as answers:
            for page, answer in answers:
                if isinstance(answer, PageError):
                    yield page, answer
                    continue
                found = questions_in(answer.text, cut=answer.cut)
                if len(found) >= count:
                    yield page, found[:count]
                elif attempt + 1 < attempts:
                    again.append(page)
                else:
                    yield page, _too_few(page, answer, len(found), count, attempts)
        waiting = again


def _too_few(page: Page, answer: Answer, found: int, count: int, attempts: int) -> PageError:
    words = " ".join("".join(c if c.isprintable() else " " for c in answer.text).split())
    said = f"{words[:80]}..." if len(words) > 80 else words
    cut = ", cut off at its length limit" if answer.cut else ""
    plural = "s" if attempts > 1 else ""
    return PageError(
        page.id,
        f"{found} of {count} questions after {attempts} attempt{plural}, the last answer{cut}: {said!r}",
    )


class _Line(NamedTuple):
    """A question as it stands in the file."""

    page: str
    digest: str
    number: int
    of: int
    model: str
    raw: bytes


class _Book:
    """The file of questions, of which only whole pages count: what was cut off or asked about another file goes."""

    def __init__(self, path: Path, pages: Sequence[Page], *, model: str, count: int) -> None:
        self._path = path
        self._model = model
        self._count = count
        self._places = {page.id: place for place, page in enumerate(pages)}
        digests = {page.id: page.digest for page in pages}
        lines, sound = _read(path)
        blocks: dict[str, list[_Line]] = {}
        for line in lines:
            if digests.get(line.page, line.digest) == line.digest:
                blocks.setdefault(line.page, []).append(line)
        whole = {page: block for page, block in blocks.items() if _is_whole(block)}
        for page, (first, *_) in whole.items():
            if page in digests and (first.model, first.of) != (model, count):
                raise InputError(
                    f"{path} holds {first.of} questions a page by {first.model}, not {count} by {model}: name another "
                    "output, or ask as before"
                )
        self._blocks = {page: b"".join(line.raw for line in block) for page, block in whole.items()}
        if not sound or sum(map(len, whole.values())) < len(lines):
            self._rewrite()

    def __contains__(self, page: object) -> bool:
        return page in self._blocks

    def add(self, page: Page, questions: Sequence[str]) -> None:
        """Write a page's questions, in one go and down to the disk."""
        block = b"".join(
            _encoded(
                {
                    "id": f"{page.id}?{number}",
                    "query": question,
                    "relevant": [page.id],
                    "digest": page.digest,
                    "number": number,
                    "of": self._count,
                    "model": self._model,
                }
            )
            for number, question in enumerate(questions, 1)
        )
        with self._path.open("ab") as stream:
            stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        self._blocks[page.id] = block

    def arrange(self) -> None:
        """Bring the pages into their order, behind those of other sources."""
        arranged = sorted(self._blocks, key=lambda page: self._places.get(page, -1))
        if arranged != list(self._blocks) or not self._path.exists():
            self._blocks = {page: self._blocks[page] for page in arranged}
            self._rewrite()

    def _rewrite(self) -> None:
        with replacing(self._path.resolve()) as partial:
            partial.write_bytes(b"".join(self._blocks.values()))


def _is_whole(block: Sequence[_Line]) -> bool:
    return [line.number for line in block] == list(range(1, block[0].of + 1))


def _encoded(record: dict[str, object]) -> bytes:
    """One line of JSON, readable where it can be: names of files may hold what UTF-8 does not."""
    line = json.dumps(record, ensure_ascii=False)
    return f"{line if line.isprintable() else json.dumps(record)}\n".encode()


def _read(path: Path) -> tuple[list[_Line], bool]:
    """The questions of a file, and whether its last line is whole: a run may have been killed while it wrote."""
    if not path.exists():
        return [], True
    *whole, rest = path.read_bytes().split(b"\n")
    found = [_line(path, number, raw) for number, raw in enumerate(whole, 1)]
    if not rest:
        return found, True
    if not rest.strip(b"\0") or START.startswith(rest) or (rest.startswith(START) and not _is_json(rest)):
        return found, False
    return [*found, _line(path, len(found) + 1, rest)], False


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _line(path: Path, number: int, raw: bytes) -> _Line:
    try:
        record: Any = json.loads(raw)
        digest, place, of, model = (record[name] for name in ("digest", "number", "of", "model"))
        return _Line(record["relevant"][0], digest, place, of, model, raw + b"\n")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(
            f"line {number} of {path} is no question that was asked here, and would be lost: name another output"
        ) from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other run writes to `path` meanwhile."""
    lock = FileLock(path.resolve().with_name(f".{path.name}.lock"))
    if not lock.take():
        raise InputError(f"another run is writing to {path}: wait for it, or name another output")
    try:
        yield
    finally:
        lock.release(remove=True)
