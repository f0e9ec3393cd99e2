"""The same vectors on a GPU, in both precisions, and what happens when its memory really runs out."""

import pytest
import torch

from pagefacets.vectors.encoder import encoder
from tests.checkpoints import retrievers
from tests.checkpoints.pages import Noise, page, pages

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("retrievers")
    colqwen = retrievers.colqwen_base(root / "colqwen-base", "qwen2_5_vl")
    return {
        "colpali": retrievers.colpali_adapter(root / "colpali", retrievers.colpali_base(root / "colpali-base")),
        "colqwen2.5": retrievers.colqwen_adapter(root / "colqwen", colqwen),
        "jina-v4": retrievers.jina_v4(root / "jina"),
    }


@pytest.mark.parametrize("name", ["colpali", "colqwen2.5", "jina-v4"])
def test_same_vectors_and_importance_as_on_the_cpu(folders, name):
    folder = folders[name]
    here = list(encoder(str(folder), device="cpu", importance=True).encode_pages(pages()))
    for dtype, cosine, weight in (("float32", 0.9999, 1e-4), (None, 0.99, 2e-2)):
        model = encoder(str(folder), dtype=dtype, importance=True)
        assert model.config()["dtype"] == (dtype or "bfloat16")
        for one, other in zip(here, model.encode_pages(pages()), strict=True):
            assert other.vectors.device.type == "cpu"
            assert (one.vectors * other.vectors).sum(1).min() > cosine
            assert (one.importance - other.importance)[one.image_mask].abs().max() < weight
            assert one.grid == other.grid


def test_memory_that_really_runs_out_halves_the_batch(folders):
    folder = folders["colqwen2.5"]
    drawn = [page(Noise(100, 160, i), str(i)) for i in range(512)]
    expected = [found.vectors for found in encoder(str(folder), dtype="float32", batch_size=16).encode_pages(drawn)]
    model = encoder(str(folder), dtype="float32", batch_size=512)
    model.encode_queries(["load the weights"])
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    held = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((held + (48 << 20)) / total)
    try:
        found = [one.vectors for one in model.encode_pages(drawn)]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert model._pages.size < 512
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
