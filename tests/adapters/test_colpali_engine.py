"""Any method as a pooler of colpali-engine: its own base class, of the installed package."""

import importlib.util
import pickle
import sys

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import pagefacets as pf
from tests.test_docs import programs

if importlib.util.find_spec("colpali_engine") is None:
    pytest.skip(
        "colpali-engine is not installed: pip install --no-deps colpali-engine to test its poolers",
        allow_module_level=True,
    )

LENGTHS = (9, 30, 17)


@pytest.fixture(scope="module", autouse=True)
def _poolers_alone():
    """The package's poolers without its models, which import torchvision: a build for this PyTorch may be missing."""
    package = importlib.util.module_from_spec(importlib.util.find_spec("colpali_engine"))
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "colpali_engine"}
    sys.modules["colpali_engine"] = package
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "colpali_engine"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture(scope="module")
def pages():
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.functional.normalize(torch.randn(n, 16, generator=generator), dim=1) for n in LENGTHS]


@pytest.fixture(scope="module")
def tokens():
    return pf.CalibrationPool(torch.randn(40, 16, generator=torch.Generator().manual_seed(1)))


def made(*args, **options):
    from pagefacets.adapters.colpali_engine import token_pooler

    return token_pooler(*args, **options)


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "name", ["identity", "kmeans", "light-colpali", "magic", "pool1d", "random", "voronoi", "ward"]
)
def test_it_is_one_of_theirs_and_gives_what_compress_gives(pages, tokens, name):
    from colpali_engine.compression.token_pooling import BaseTokenPooler

    options = {"identity": {}, "voronoi": {"ratio": 0.2, "samples": 2000}}.get(name, {"ratio": 0.2})
    pooler = made(name, pool=tokens, **options)
    assert isinstance(pooler, BaseTokenPooler)
    method = pf.compressor(name, **options)
    expected = [method.compress(page, tokens).vectors for page in pages]
    assert_equal(pooler.pool_embeddings(pages), expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_comes_back_padded_on_its_side(pages, tokens, side):
    pooler = made("magic", ratio=0.2, pool=tokens)
    ragged = pooler.pool_embeddings(pages)
    padded = pad_sequence(pages, batch_first=True, padding_side=side)
    found = pooler.pool_embeddings(padded, padding=True, padding_side=side)
    torch.testing.assert_close(found, pad_sequence(ragged, batch_first=True, padding_side=side))
    with pytest.raises(pf.InputError, match="is zero, NaN or infinite: strip padding rows"):
        pooler.pool_embeddings(padded)
    whole = torch.stack([page[:9] for page in pages])
    assert pooler.pool_embeddings(whole).shape == (3, 2, 16)


def test_the_clusters_partition_each_page(pages, tokens):
    output = made("ward", ratio=0.2).pool_embeddings(pages, return_dict=True)
    for page, kept, clusters in zip(pages, output.pooled_embeddings, output.cluster_id_to_indices, strict=True):
        assert sorted(clusters) == list(range(len(kept)))
        rows = torch.cat([indices for (indices,) in clusters.values()])
        assert sorted(rows.tolist()) == list(range(len(page)))
        means = torch.stack([page[clusters[facet][0]].mean(0) for facet in range(len(kept))])
        torch.testing.assert_close(kept, torch.nn.functional.normalize(means, dim=1))
    assert made("ward", ratio=0.2).pool_embeddings([], return_dict=True).pooled_embeddings == []


@pytest.mark.parametrize("factor", [2, 5])
def test_light_colpali_is_their_hierarchical_pooler(pages, factor):
    from colpali_engine.compression.token_pooling import HierarchicalTokenPooler

    theirs = HierarchicalTokenPooler().pool_embeddings(pages, pool_factor=factor)
    ours = made("light-colpali", ratio=1 / factor).pool_embeddings(pages)
    for one, other in zip(ours, theirs, strict=True):
        assert len(one) == len(other)
        assert ((one @ other.T) > 1 - 1e-5).sum().item() == len(one)


def test_it_keeps_dtype_and_travels_to_other_processes(pages, tokens):
    pooler = pickle.loads(pickle.dumps(made("magic", budget=3, pool=tokens)))
    half = pooler.pool_embeddings([page.bfloat16() for page in pages])
    assert {rows.dtype for rows in half} == {torch.bfloat16}
    assert [len(rows) for rows in half] == [3, 3, 3]
    assert "'budget': 3" in repr(pooler)


def test_workers_change_nothing(pages):
    pooler = made("ward", budget=4)
    assert_equal(pooler.pool_embeddings(pages * 12, num_workers=2), pooler.pool_embeddings(pages * 12))
    with pytest.raises(ValueError, match="workers must be at least 1"):
        pooler.pool_embeddings(pages, num_workers=0)


def test_what_cannot_work_is_refused(tokens):
    with pytest.raises(pf.InputError, match="pool2d reads the patch grid"):
        made("pool2d", ratio=0.1)
    with pytest.raises(pf.InputError, match="magic needs a calibration pool"):
        made("magic", ratio=0.1)


def test_the_program_in_the_docs_runs(pages, tokens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokens.save("pool.safetensors")
    names = {"embeddings": pages}
    exec(programs("adapters.md")["pooled.py"], names)
    assert_equal(names["facets"], [pf.Magic(ratio=0.05).compress(page, tokens).vectors for page in pages])
