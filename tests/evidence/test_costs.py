"""What Table 3 measures with: sizes that can be told beforehand, and times that behave as times."""

import pytest
import torch

import pagefacets as pf
from pagefacets.evidence.costs import compressed, distinct, encoding_ms, megabytes, query_ms
from tests.checkpoints.pages import pages as drawn
from tests.vectors.hashed import HashedEncoder


def rows(count, p=128, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, p, generator=generator), dim=1)


def test_megabytes_are_decimal_float32_and_per_thousand_pages():
    # The paper's index: 743.5 vectors of 128 numbers on average are 380.67 MB for 1,000 pages.
    assert megabytes([torch.zeros(743, 128), torch.zeros(744, 128)]) == pytest.approx(380.672)
    assert megabytes([torch.zeros(743, 128, dtype=torch.float16)] * 3) == pytest.approx(380.416)


def test_queries_are_distinct_by_what_they_hold():
    a, b = rows(5), rows(5, seed=1)
    found = distinct([a, b, a.clone(), b[:4]])
    assert [tuple(query.shape) for query in found] == [(5, 128), (5, 128), (4, 128)]
    assert torch.equal(found[0], a)
    assert torch.equal(found[1], b)


def test_each_replay_is_a_mean_over_the_queries_and_more_vectors_take_longer():
    queries = [rows(20, seed=i) for i in range(4)]
    few = query_ms([rows(4, seed=i) for i in range(8)], queries, replays=3, device="cpu")
    many = query_ms([rows(700, seed=i) for i in range(80)], queries, replays=3, device="cpu")
    assert len(few) == len(many) == 3
    assert 0 < min(few) < min(many)


def test_pages_are_compressed_as_ever_in_every_run():
    pages = [pf.PageVectors(rows(60 + i, seed=i), id=str(i)) for i in range(3)]
    pool = pf.CalibrationPool(rows(30, seed=9))
    magic = pf.Magic(ratio=0.1)
    found = compressed(magic, pages, pool, replays=4, device="cpu")
    assert len(found.runs) == 4
    assert found.ms == pytest.approx(sum(found.runs) / 4)
    assert min(found.runs) > 0
    for vectors, page in zip(found.vectors, pages, strict=True):
        assert torch.equal(vectors, magic.compress(page, pool).vectors)


def test_the_encoder_is_timed_over_all_pages_in_every_run():
    """An encoder that rests 20 ms over each page cannot take less; one page goes before, uncounted."""
    encoder = HashedEncoder(pause=0.02)
    pages = drawn(shapes=((8, 8), (8, 6), (6, 8)))
    found = encoding_ms(encoder, pages, replays=2, device="cpu")
    assert len(found) == 2
    assert min(found) >= 20
    assert encoder.asked == ["page-0", *["page-0", "page-1", "page-2"] * 2]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_the_same_vectors_are_kept():
    pages = [pf.PageVectors(rows(200, seed=i), id=str(i)) for i in range(3)]
    pool = pf.CalibrationPool(rows(100, seed=9))
    there = compressed(pf.Magic(ratio=0.1), pages, pool, replays=1, device="cuda")
    here = compressed(pf.Magic(ratio=0.1), pages, pool, replays=1, device="cpu")
    for one, other in zip(there.vectors, here.vectors, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=0)
    assert min(query_ms(there.vectors, [rows(20)], replays=2, device="cuda")) > 0
