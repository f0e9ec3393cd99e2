import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.pages.letters import clean, letter, stands_alone
from pagefacets.pages.texts import words_of


@given(st.text(st.characters(exclude_categories=())))
def test_cleaned_text_can_be_written_and_is_clean(text):
    once = clean(text)
    assert once.encode("utf-8").decode() == once
    assert clean(once) == once
    assert not {unicodedata.category(character) for character in once} & {"Cc", "Cs", "Co", "Cn"}
    assert once == once.strip()
    assert "  " not in once


@given(st.text(st.characters(categories=("Lu", "Ll", "Nd", "Po"), max_codepoint=0x2000), min_size=1))
def test_plain_text_stays_as_it_is(text):
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\0b\x07c", "abc"),
        ("lone \ud83d half", "lone half"),
        ("pair \ud83d\ude00", "pair 😀"),
        ("ﬁne ﬂow ﬀ", "fine flow ff"),
        ("\ufeffstart", "start"),
        ("two\u00a0words\u200bthree", "two words three"),
        ("co\u00adoperate", "cooperate"),
        ("نمی\u200cخواهم", "نمی\u200cخواهم"),
        ("½ ² ™ …", "½ ² ™ …"),
        (" \t\r\n ", ""),
    ],
)
def test_known_texts(text, cleaned):
    assert clean(text) == cleaned
    assert words_of(text).texts == tuple(cleaned.split())


@pytest.mark.parametrize("character", "漢かカㄅ々𠀀"[:4] + "\U00020000")
def test_scripts_without_spaces_stand_alone(character):
    assert stands_alone(character)
    assert letter(character) == character


@pytest.mark.parametrize("character", "aé한ไשم1-。")
def test_other_scripts_do_not(character):
    assert not stands_alone(character)
