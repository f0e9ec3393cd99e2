"""What every encoder must do, run over all of `encoders.ENCODERS`, on pages that have words and a picture."""

import itertools
import json
import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from pagefacets.data import Page, Words
from pagefacets.errors import InputError, PageError
from pagefacets.vectors.encoder import encoder as encoder_called
from tests.checkpoints.pages import SHAPES
from tests.contracts.encoders import ENCODERS

# One vector for a page and for a query, as their names say.
SINGLE = ("vlm2vec", "vlm2vec-v2", "unime-v2", "qwen3-vl-embedding", "jina-v4-single")
# Patches in rows and columns, as their pages have them.
ON_A_GRID = ("colpali", "colpali-hf", "colqwen2", "colqwen2-hf", "colqwen2.5", "jina-v4")
QUERIES = ["what was the total revenue of 2023?", "capital", "ما هي الإيرادات؟ 収益", "the user asks " * 30]


@dataclass(frozen=True)
class Sheet:
    """Words over noise."""

    width: int
    height: int
    texts: tuple[str, ...]

    def image(self, longest):
        rng = np.random.default_rng(len(self.texts))
        return Image.fromarray(rng.integers(0, 256, (self.height, self.width, 3), dtype=np.uint8))

    def words(self):
        edges = np.linspace(0, 1, len(self.texts) + 1, dtype=np.float32)
        zeros, ones = np.zeros(len(self.texts)), np.ones(len(self.texts))
        return Words(self.texts, np.stack([edges[:-1], zeros, edges[1:], ones], axis=1).astype(np.float32))


@dataclass(frozen=True)
class Torn:
    """A page of which nothing can be read."""

    place: str

    def image(self, longest):
        raise PageError(self.place, "is cut off: fetch it again")

    def words(self):
        raise PageError(self.place, "is cut off: fetch it again")


def sheet(content, id):
    return Page(id, "drawn.pdf", 0, None, "0" * 32, content)


def sheets(shapes=SHAPES):
    """Pages of different shapes, with different numbers of words: enough that only one needs several windows."""
    counts = itertools.cycle([21, 300, 40])
    return [
        sheet(Sheet(*shape, tuple(f"word{(7 * i) % 90}" for i in range(count))), f"p{number}")
        for number, (shape, count) in enumerate(zip(shapes, counts, strict=False))
    ]


@pytest.fixture(scope="session", params=sorted(ENCODERS))
def made(request, tmp_path_factory):
    """An encoder, its name, and its pages encoded one by one."""
    encoder = ENCODERS[request.param](tmp_path_factory.mktemp("checkpoints"))
    return request.param, encoder, [found for page in sheets() for found in encoder.encode_pages([page])]


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


def test_vectors_are_ragged_finite_and_of_unit_length(made):
    name, encoder, alone = made
    assert [found.id for found in alone] == ["p0", "p1", "p2"]
    for found in alone:
        assert found.vectors.dtype == torch.float32
        assert found.vectors.shape == (found.n, encoder.dim)
        assert not found.vectors.is_inference()
        close(found.vectors.norm(dim=1), torch.ones(found.n))
    if name in SINGLE:
        assert [found.n for found in alone] == [1, 1, 1]
    elif name not in ("agc", "metaembed", "colpali", "colpali-hf"):
        assert len({found.n for found in alone}) > 1
    # What differs is told apart.
    assert (alone[0].vectors[-1] - alone[1].vectors[-1]).abs().max() > 1e-3


def test_a_grid_has_a_cell_for_every_image_row(made):
    name, _, alone = made
    assert all((found.grid is not None) == (name in ON_A_GRID) for found in alone)
    for found, (width, height) in zip(alone, SHAPES, strict=True):
        if found.grid is not None:
            columns, rows = found.grid
            assert int(found.image_mask.sum()) == columns * rows < found.n
            if "colpali" in name:
                assert columns == rows
            else:
                assert abs(math.log((columns / rows) / (width / height))) < math.log(1.6)


def test_words_lie_where_they_stand(made):
    name, _, alone = made
    assert all((found.boxes is not None) == (name == "words") for found in alone)
    for found in alone:
        if found.boxes is not None:
            assert (found.boxes[:, 0] < found.boxes[:, 2]).all()
            assert (found.boxes[1:, 0] >= found.boxes[:-1, 0]).all()


def test_a_page_has_the_same_vectors_alone_and_among_others(made):
    _, encoder, alone = made
    together = list(encoder.encode_pages(sheets()))
    for found, other in zip(alone, together, strict=True):
        assert (found.id, found.grid) == (other.id, other.grid)
        close(found.vectors, other.vectors)
        for one, two in ((found.image_mask, other.image_mask), (found.boxes, other.boxes)):
            assert (one is None) == (two is None)
            assert one is None or torch.equal(one, two)


def test_the_same_pages_give_the_same_bits_in_their_order(made):
    _, encoder, _ = made
    once, again = (list(encoder.encode_pages(iter(sheets()[::-1]))) for _ in range(2))
    assert [found.id for found in once] == ["p2", "p1", "p0"]
    for found, other in zip(once, again, strict=True):
        assert torch.equal(found.vectors, other.vectors)
    first, second = (encoder.encode_queries(QUERIES) for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_no_pages_and_no_queries_are_nothing(made):
    _, encoder, _ = made
    assert list(encoder.encode_pages([])) == []
    assert encoder.encode_queries([]) == []


def test_a_page_that_cannot_be_read(made):
    _, encoder, alone = made
    first, _, third = sheets()
    torn = sheet(Torn("torn.pdf#3"), "torn.pdf#3")
    told = []
    found = list(encoder.encode_pages([torn, first, torn, third, torn], skipped=told.append))
    assert [one.id for one in found] == ["p0", "p2"]
    assert [error.place for error in told] == ["torn.pdf#3"] * 3
    close(found[1].vectors, alone[2].vectors)
    with pytest.raises(PageError, match=r"torn\.pdf#3: is cut off: fetch it again"):
        list(encoder.encode_pages([first, torn]))


def test_each_query_is_one_matrix(made):
    name, encoder, _ = made
    found = encoder.encode_queries(QUERIES)
    assert len(found) == len(QUERIES)
    for rows in found:
        assert rows.dtype == torch.float32
        assert rows.shape == (1 if name in SINGLE else len(rows), encoder.dim)
        assert not rows.is_inference()
        close(rows.norm(dim=1), torch.ones(len(rows)))
    for query, rows in zip(QUERIES, found, strict=True):
        close(encoder.encode_queries([query])[0], rows)


@pytest.mark.parametrize("queries", ["revenue", "", ["revenue", ""], [" \n"]])
def test_what_is_no_list_of_queries_is_refused(made, queries):
    _, encoder, _ = made
    sentence = "put it in a list" if isinstance(queries, str) else f"query {len(queries) - 1} is .* no words to look"
    with pytest.raises(InputError, match=sentence):
        encoder.encode_queries(queries)


def test_every_row_of_a_query_stands_for_a_text_or_none_does(made):
    name, encoder, _ = made
    for query, rows in zip(QUERIES, encoder.encode_queries(QUERIES), strict=True):
        texts = encoder.query_tokens(query)
        assert (texts is not None) == (name == "words" or name in ON_A_GRID)
        if texts is not None:
            assert len(texts) == len(rows)
            assert all(texts)
            if query.isascii():
                assert "".join((encoder.query_prefix + query).split()) in "".join("".join(texts).split())


def test_its_configuration_is_json_and_makes_it_again(made):
    _, encoder, alone = made
    config = json.loads(json.dumps(dict(encoder.config())))
    again = encoder_called(**config)
    assert again.id == encoder.id
    assert again.dim == encoder.dim
    assert again.query_prefix == encoder.query_prefix
    assert dict(again.config()) == dict(encoder.config())
    (found,) = again.encode_pages(sheets()[:1])
    assert torch.equal(found.vectors, alone[0].vectors)


def test_the_offline_encoder_travels_between_processes():
    encoder = ENCODERS["words"](None)
    packed = pickle.dumps(encoder)
    assert len(packed) < 1000
    assert pickle.loads(packed) == encoder
