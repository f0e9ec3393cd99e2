"""Any method inside a MultiVectorEncoder of Sentence Transformers."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

import pagefacets as pf
from pagefacets.facets.registry import METHODS
from tests.adapters.library import passages
from tests.checkpoints.pages import pages as drawn_pages
from tests.checkpoints.retrievers import saved as saved_checkpoint
from tests.test_docs import programs

TEXTS = list(passages(6).values())
BARE = ["identity", "kmeans", "light-colpali", "magic", "pool1d", "random", "voronoi", "ward"]


def TokenPooling(*args, **options):
    """The class, imported when a test runs: Sentence Transformers takes its time."""
    from pagefacets.adapters import sentence_transformers

    return sentence_transformers.TokenPooling(*args, **options)


def pooling(name, pool):
    options = {"identity": {}, "voronoi": {"ratio": 0.25, "samples": 2000}}.get(name, {"ratio": 0.25})
    return TokenPooling(name, pool=pool, **options)


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", BARE)
def test_a_call_with_token_pooling_gives_what_compress_gives(retriever, pool, name):
    module = pooling(name, pool)
    expected = [module.choice.compressor.compress(rows, pool).vectors for rows in retriever.encode_document(TEXTS)]
    found = retriever.encode_document(TEXTS, token_pooling=module)
    assert_equal(found, expected)
    assert len({len(rows) for rows in found}) > 1
    padded = torch.nn.utils.rnn.pad_sequence(retriever.encode_document(TEXTS), batch_first=True)
    assert_equal(list(module.pool(padded)), list(torch.nn.utils.rnn.pad_sequence(expected, batch_first=True)))


def test_every_method_runs_or_says_what_it_misses(encoded, pool):
    """Both lists are the methods' own: what is refused here cannot run on a matrix of vectors either."""
    rows = encoded[0][0]
    for name in METHODS:
        if name in BARE:
            assert 1 <= len(pooling(name, pool).pool_one(rows)) <= len(rows)
            continue
        with pytest.raises(pf.InputError, match=rf"{name} reads the .*: take a method that runs on bare vectors"):
            TokenPooling(name, pool=pool, ratio=0.25)
        with pytest.raises(pf.InputError, match=name):
            pf.compressor(name, ratio=0.25).compress(rows)


def test_queries_are_left_alone_unless_tasks_say_so(retriever, pool):
    queries = ["is the red boat harbour", "is the clock"]
    full = retriever.encode_query(queries)
    assert_equal(retriever.encode_query(queries, token_pooling=TokenPooling("ward", budget=2)), full)
    both = TokenPooling("ward", budget=2, tasks=["query", "document"])
    assert [len(rows) for rows in retriever.encode_query(queries, token_pooling=both)] == [2, 2]


@pytest.fixture(scope="module")
def saved(retriever_folder, pool, tmp_path_factory):
    """A model with MAGIC as its last module, what it answers, and where it was saved."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(retriever_folder, device="cpu")
    model.append(TokenPooling("magic", ratio=0.25, tau=0.1, pool=pool))
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save_pretrained(str(folder))
    return folder, model.encode_document(TEXTS), model.encode_query(TEXTS[:2])


def test_it_is_part_of_the_model(retriever, saved, pool):
    _, documents, queries = saved
    magic = pf.Magic(ratio=0.25, tau=0.1)
    assert_equal(documents, [magic.compress(rows, pool).vectors for rows in retriever.encode_document(TEXTS)])
    assert_equal(queries, retriever.encode_query(TEXTS[:2]))


def test_it_is_saved_and_loaded_with_the_model_and_its_pool(saved, pool):
    from sentence_transformers import MultiVectorEncoder

    folder, documents, queries = saved
    modules = json.loads((folder / "modules.json").read_text())
    place = folder / modules[-1]["path"]
    assert modules[-1]["type"] == "pagefacets.adapters.sentence_transformers.TokenPooling"
    assert sorted(file.name for file in place.iterdir()) == ["config.json", "pool.safetensors"]
    assert pf.CalibrationPool.load(place / "pool.safetensors").sha256 == pool.sha256

    again = MultiVectorEncoder(str(folder), device="cpu", trust_remote_code=True)
    assert again[-1].choice.compressor == pf.Magic(ratio=0.25, tau=0.1)
    assert again[-1].tasks == ["document"]
    assert_equal(again.encode_document(TEXTS), documents)
    assert_equal(again.encode_query(TEXTS[:2]), queries)
    again.save_pretrained(str(folder))
    assert len(pf.CalibrationPool.load(place / "pool.safetensors")) == len(pool)


def test_a_model_without_its_pool_says_so(saved, tmp_path):
    from sentence_transformers import MultiVectorEncoder

    copied = shutil.copytree(saved[0], tmp_path / "copy")
    next(copied.glob("*/pool.safetensors")).unlink()
    with pytest.raises(pf.InputError, match=r"has no \d_TokenPooling/pool.safetensors, the calibration pool"):
        MultiVectorEncoder(str(copied), device="cpu", trust_remote_code=True)
    config = next(copied.glob("*_TokenPooling/config.json"))
    config.write_text("{}")
    with pytest.raises(pf.FileFormatError, match="lacks 'compressor': save the model again"):
        MultiVectorEncoder(str(copied), device="cpu", trust_remote_code=True)


def test_a_pool_may_be_a_file_and_a_method_without_one_needs_none(tmp_path, encoded, pool):
    pool.save(tmp_path / "pool.safetensors")
    rows = encoded[0][0]
    from_file = TokenPooling("magic", budget=4, pool=tmp_path / "pool.safetensors")
    assert torch.equal(from_file.pool_one(rows), pf.Magic(budget=4).compress(rows, pool).vectors)
    TokenPooling("ward", budget=4).save(str(tmp_path))
    from pagefacets.adapters import sentence_transformers

    assert sentence_transformers.TokenPooling.load(str(tmp_path)).choice == TokenPooling("ward", budget=4).choice


def test_documents_without_vectors_pass_and_rows_of_one_dtype_stay(pool):
    module = TokenPooling("magic", budget=2, pool=pool)
    assert module.pool_one(torch.zeros(0, 24)).shape == (0, 24)
    half = torch.randn(7, 24, generator=torch.Generator().manual_seed(0)).half()
    assert module.pool_one(half).dtype == torch.float16
    assert [len(rows) for rows in module.pool([half.float(), torch.zeros(0, 24)])] == [2, 0]


class Own(pf.Compressor):
    name = "own"

    def _reduce(self, D, w, K, pages):
        from pagefacets.facets.compressor import Reduction

        return Reduction(D[:K], torch.arange(D.shape[0]).clamp_max(K - 1))


def test_a_method_of_ones_own_runs_but_is_not_saved(tmp_path, encoded):
    module = TokenPooling(Own(budget=3))
    torch.testing.assert_close(module.pool_one(encoded[0][0]), encoded[0][0][:3])
    with pytest.raises(pf.InputError, match="own is a method of your own, which a loaded model would not find"):
        module.save(str(tmp_path))


def test_what_cannot_work_is_refused_at_once(pool, encoded):
    with pytest.raises(pf.InputError, match="magic needs a calibration pool"):
        TokenPooling("magic", ratio=0.05)
    with pytest.raises(pf.InputError, match=re.escape("magic needs exactly one of ratio=")):
        TokenPooling(pool=pool)
    with pytest.raises(pf.InputError, match="ratio cannot change a Ward that is already configured"):
        TokenPooling(pf.compressor("ward", budget=2), ratio=0.1)
    with pytest.raises(pf.InputError, match="want a gradient, which compression does not pass on"):
        TokenPooling("ward", budget=2).pool_one(torch.ones(5, 24, requires_grad=True))
    with pytest.raises(pf.PoolMismatchError, match="dimension 5"):
        TokenPooling("magic", budget=2, pool=pool).pool_one(torch.eye(5))


def test_the_programs_in_the_docs_run(retriever_folder, library, tmp_path, monkeypatch):
    """As written, but for the model, which would be fetched."""
    from sentence_transformers import MultiVectorEncoder

    corpus, asked, _ = library
    monkeypatch.chdir(tmp_path)
    names = {"questions": list(asked.values()), "sample": list(corpus.values()), "pages": TEXTS}
    written = programs("adapters.md")
    assert '"vidore/colqwen2.5-v0.2"' in written["pool_of_a_model.py"]
    exec(written["pool_of_a_model.py"].replace("vidore/colqwen2.5-v0.2", retriever_folder), names)
    full = names["model"].encode_document(TEXTS)
    exec(written["inside_a_model.py"], names)
    assert [len(rows) for rows in names["facets"]] == [pf.Magic(ratio=0.05).k(len(rows)) for rows in full]
    loaded = MultiVectorEncoder("colqwen2.5-magic", trust_remote_code=True)
    assert_equal(loaded.encode_document(TEXTS), names["facets"])


def test_page_images_of_a_colpali_checkpoint_keep_a_share_of_their_patches(tmp_path):
    """A tiny checkpoint of the real architecture, read by Sentence Transformers from pictures."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(saved_checkpoint("colpali-hf", tmp_path), device="cpu")
    images = [page.image() for page in drawn_pages()]
    full, questions = model.encode_document(images), model.encode_query(["what was the revenue?", "2023"])
    pool = pf.CalibrationPool.build(questions, full, size=10, dictionary=5)
    model.append(TokenPooling("magic", ratio=0.25, pool=pool))
    magic = pf.Magic(ratio=0.25)
    assert_equal(model.encode_document(images), [magic.compress(rows, pool).vectors for rows in full])
    assert_equal(model.encode_query(["what was the revenue?", "2023"]), questions)


def test_without_the_package_one_sentence_names_the_extra():
    hidden = "import sys; sys.modules['sentence_transformers'] = None; import pagefacets.adapters.sentence_transformers"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert "pip install 'pagefacets[sentence-transformers]'" in done.stderr
