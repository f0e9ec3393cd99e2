"""Questions out of what a model wrote: numbered, bulleted, as JSON, quoted, or one to a line."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable

__all__ = ["questions_in"]

# An answer is read up to here, and a longer item is no question.
LONGEST_ANSWER = 40_000
LONGEST_QUESTION = 600
# Places in an answer where JSON may begin that are tried.
STARTS = 40

_MARKS = "?？؟⸮"
_NUMBER = re.compile(
    r"^[\s>*_#`\"'(\[]*(?:(?:question|query|q)\s*#?\s*)?(\d{1,3})"
    r"(?:\s*$|(?:\\?[.)\]:、．）：]|\s*[-–—]\s|\*\*)(?!\d))[\s*_\]]*",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^\s*(?:[-*+•●▪◦‣·–—]|\\-)\s+")
# The next number on the line of the question before it.
_NEXT = re.compile(rf"(?<=[{_MARKS}])[\s;,]+(?=\**\(?\d{{1,3}}[.)]\s)")
_STRING = re.compile(rf'"(?:[^"\\\n]|\\.){{3,}}[{_MARKS}]"')
_LABEL = re.compile(r"^(?:question|query|q)(?:\s*\d+)?\s*[:：]\s*", re.IGNORECASE)
_ANSWER = re.compile(rf"(?<=[{_MARKS}])\s*[(\[*_–—-]*\s*(?:answer|ans|a)[*_]*\s*[:：].*$", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"^\W*(?:question|query)\s*(?:\d+|text|here)?\W*$", re.IGNORECASE)
# What a model says instead of asking, or to go on talking.
_ASIDE = re.compile(
    r"^(?:sorry|unfortunately|as an ai|let me know|if you)\b"
    r"|^i(?:['’]?m| am) (?:sorry|unable|not able|afraid)\b"
    r"|^i (?:can['’]?t|cannot|can not|do not|don['’]?t|apologi[sz]e)\b"
    r"|^(?:can|could|would|will|do) you (?:please |like |want |need |mind |provide |upload |share |send )",
    re.IGNORECASE,
)
_THOUGHT_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THOUGHT = re.compile(r"<think(?:ing)?>.*", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^\s*(?:```|~~~).*$", re.MULTILINE)
_QUOTES = (('"', '"'), ("“", "”"), ("'", "'"), ("«", "»"), ("*", "*"), ("[", "]"))


def questions_in(answer: str, *, cut: bool = False) -> tuple[str, ...]:
    """The distinct questions of an answer, in order; where it was `cut` off, without its unfinished last line."""
    text = unicodedata.normalize("NFC", answer[:LONGEST_ANSWER])
    text = _THOUGHT.sub("", _THOUGHT_END.split(text)[-1])
    finished = text.rstrip().rpartition("\n")[0] if cut else text
    lines = _NEXT.sub("\n", _FENCE.sub("", finished)).splitlines()
    readings = (
        _distinct(_json_texts(text)),
        _distinct(_numbered(lines)),
        _distinct(line[marker.end() :] for line in lines if (marker := _BULLET.match(line))),
        _distinct(json.loads(found[0], strict=False) for found in _STRING.finditer(text) if _escapes_well(found[0])),
    )
    best = max(readings, key=lambda questions: sum(map(_asks, questions)))
    best = best or next((questions for questions in readings if questions), ())
    return best or _distinct(line for line in lines if _asks(line.strip()))


def _json_texts(text: str) -> list[str]:
    """The texts of the first list that JSON in `text` holds, or of all its objects one after another."""
    decoder = json.JSONDecoder(strict=False)
    texts: list[str] = []
    place = 0
    for _ in range(STARTS):
        start = re.compile(r"[\[{]").search(text, place)
        if start is None:
            break
        try:
            value, place = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            place = start.end()
            continue
        texts += _texts(value)
        if isinstance(value, list) and texts:
            break
    return texts


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if not isinstance(value, dict):
        return []
    for name in ("question", "query", "text", "q", "questions", "queries", "items", "output", "results"):
        if value.get(name):
            return _texts(value[name])
    # {"1": ..., "2": ...}, {"question_1": ..., "answer_1": ...}
    counted = {key: held for key, held in value.items() if any(c.isdigit() for c in key)}
    return [text for key, held in counted.items() if not key.lower().startswith("a") for text in _texts(held)]


def _numbered(lines: list[str]) -> list[str]:
    """The items of the numbered list that asks most; the first where two ask as much."""
    runs: list[list[str]] = []
    last = 0
    open_item = False
    for line in lines:
        if marker := _NUMBER.match(line):
            number = int(marker[1])
            if not runs or number < last or (number == last and number != 1):
                runs.append([])
            runs[-1].append(line[marker.end() :])
            last = number
            open_item = True
        elif not line.strip():
            open_item = open_item and not runs[-1][-1]
        elif open_item and not _BULLET.match(line) and not _clean(runs[-1][-1]).endswith((*_MARKS, ".", "!", "。")):
            runs[-1][-1] += f" {line.strip()}"
        else:
            open_item = False
    return max(runs, key=lambda run: sum(_asks(_clean(item)) for item in run), default=[])


def _escapes_well(quoted: str) -> bool:
    try:
        json.loads(quoted, strict=False)
    except ValueError:
        return False
    return True


def _asks(text: str) -> bool:
    return text.endswith(tuple(_MARKS))


def _distinct(items: Iterable[str]) -> tuple[str, ...]:
    found: dict[str, str] = {}
    for item in items:
        question = _clean(item)
        key = re.sub(r"\W+", "", question.casefold())
        if not key or len(question) > LONGEST_QUESTION or _PLACEHOLDER.match(question) or _ASIDE.match(question):
            continue
        found.setdefault(key, question)
    return tuple(found.values())


def _clean(item: str) -> str:
    """One line of plain text: no markup, label, quotation marks or control characters, and no answer behind it."""
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in item)
    text = " ".join(text.replace("**", "").replace("`", "").split())
    text = _ANSWER.sub("", _LABEL.sub("", text)).strip()
    for opening, closing in _QUOTES:
        inner = text.rstrip(",")
        if len(inner) > 2 and inner.startswith(opening) and inner.endswith(closing):
            text = inner[1:-1].strip()
    return _LABEL.sub("", text)
