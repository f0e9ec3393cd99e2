"""The bundled model against transformers, which reads the same weights by its own code."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.vectors.minilm import DIM, MODEL_FOLDER, bundled

SENTENCES = [
    "What was the capital expenditure of fiscal year 2023, net of grants?",
    "a",
    "Übergrößenträger in der Größe 3½, naïve café",
    "東京都 の 収益 は 増加 しました",
    "שלום עולם مرحبا بالعالم",
    "[SEP] [MASK] ## [unused3]",
    " ".join(f"item {i}: {i * 37:,} dollars;" for i in range(12)),
]


@pytest.fixture(scope="module")
def theirs():
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig.from_pretrained(MODEL_FOLDER), add_pooling_layer=False).eval()
    missing, beyond = model.load_state_dict(load_file(MODEL_FOLDER / "model.safetensors"), strict=False)
    assert missing == []
    assert {name.partition(".")[0] for name in beyond} <= {"pooler", "embeddings"}
    return model


def ids_of(texts):
    return [bundled().pieces(text.split()).ids for text in texts]


def framed(ids):
    return torch.tensor([101, *ids, 102])


@pytest.mark.parametrize("text", SENTENCES)
def test_a_text_alone_equals_transformers(theirs, text):
    (ids,) = ids_of([text])
    with torch.no_grad():
        expected = theirs(framed(ids)[None]).last_hidden_state[0]
    (found,) = bundled().states([ids])
    assert found.shape == (len(ids) + 2, DIM)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_ragged_batch_equals_transformers_on_a_padded_one(theirs):
    batch = [*ids_of(SENTENCES), [], [2023] * 510]
    rows = [framed(ids) for ids in batch]
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    with torch.no_grad():
        expected = theirs(padded, (torch.arange(padded.shape[1]) < lengths[:, None]).long()).last_hidden_state
    for found, rows, length in zip(bundled().states(batch), expected, lengths, strict=True):
        torch.testing.assert_close(found, rows[:length], atol=1e-4, rtol=0)


@pytest.mark.parametrize("text", SENTENCES)
def test_pieces_are_those_of_the_authors_tokenizer(text):
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast(tokenizer_file=str(MODEL_FOLDER / "tokenizer.json"))
    expected = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert bundled().pieces(text.split()).ids == expected


def test_pieces_know_their_word_and_their_part_of_it():
    pieces = bundled().pieces(["capex", "", "net,", "é\u0301"])
    assert pieces.words.tolist() == [0, 0, 2, 2, 3]
    np.testing.assert_allclose(pieces.parts[:4], [[0, 0.8], [0.8, 1], [0, 0.75], [0.75, 1]])
    assert pieces.parts[4, 0] == 0


@given(st.lists(st.text(max_size=12), max_size=8))
def test_pieces_of_any_words(words):
    pieces = bundled().pieces(words)
    assert len(pieces.ids) == len(pieces.words) == len(pieces.parts)
    assert (np.diff(pieces.words) >= 0).all()
    assert ((pieces.words >= 0) & (pieces.words < max(len(words), 1))).all()
    assert (pieces.parts >= 0).all()
    assert (pieces.parts <= 1).all()
    assert (pieces.parts[:, 0] <= pieces.parts[:, 1]).all()


@pytest.mark.parametrize("letter", ["a", "é", "ᾂ", "한", "я"])
@pytest.mark.parametrize("length", [99, 101, 3000])
def test_a_word_of_any_length_keeps_its_letters(letter, length):
    """The tokenizer takes a run of more than 100 letters for one unknown word."""
    unknown = bundled().tokenizer.token_to_id("[UNK]")
    pieces = bundled().pieces(["before", letter * length, "after"])
    assert unknown not in pieces.ids
    own = pieces.parts[pieces.words == 1]
    covered = np.zeros(length, dtype=bool)
    for start, stop in np.round(own * length).astype(int):
        covered[start:stop] = True
    assert covered.all()
    assert (np.diff(own[:, 0]) >= 0).all()
    assert pieces.ids[0] == bundled().pieces(["before"]).ids[0]
    assert pieces.words[-1] == 2


def test_half_a_surrogate_pair_is_no_hindrance():
    assert bundled().pieces(["\ud83d", "a\ude00b", "\ud83d\ude00"]).words.tolist()[-1] == 2
