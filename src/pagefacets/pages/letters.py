"""What is kept of a text layer's characters: readable letters, one form of each, no debris."""

from __future__ import annotations

import functools
import unicodedata

__all__ = ["clean", "letter", "stands_alone"]

# Ligatures and Arabic letters in their positional forms are drawings of letters: the letters are what is searched for.
_DRAWN_FORMS = ((0xFB00, 0xFDFF), (0xFE70, 0xFEFC))
_JOINERS = "\u200c\u200d"
_ZERO_WIDTH_SPACE = "\u200b"
# Controls, private use, halves of surrogate pairs, and code points that no character has.
_DEBRIS = {"Cc", "Cf", "Co", "Cs", "Cn"}
_REPLACEMENT = "\ufffd"
# Kana, bopomofo, and the planes of Han characters: written without spaces.
_UNSPACED = ((0x3040, 0x30FF), (0x3100, 0x312F), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF))
_HAN_PLANES = (0x20000, 0x3FFFF)


@functools.lru_cache(maxsize=1 << 16)
def letter(character: str) -> str:
    """The character as it is kept: a space for any kind of space, nothing for debris, letters for a ligature."""
    if character.isspace() or character == _ZERO_WIDTH_SPACE:
        return " "
    if character in _JOINERS:
        return character
    if character == _REPLACEMENT or unicodedata.category(character) in _DEBRIS:
        return ""
    if any(first <= ord(character) <= last for first, last in _DRAWN_FORMS):
        return unicodedata.normalize("NFKC", character).strip()
    return character


@functools.lru_cache(maxsize=1 << 16)
def stands_alone(character: str) -> bool:
    """Whether the character is a word by itself, being of a script without spaces between words."""
    code = ord(character)
    return any(first <= code <= last for first, last in (*_UNSPACED, _HAN_PLANES))


def clean(text: str) -> str:
    """The text without debris, each run of spaces as one."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
    return " ".join("".join(map(letter, whole)).split())
