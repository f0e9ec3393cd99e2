"""What Sentence Transformers expects of a token pooling, run over every method that needs nothing but vectors."""

import copy
import pickle

import pytest
import torch

import pagefacets as pf
from pagefacets.facets.registry import METHODS
from tests.contracts.test_compressors import FEWER_SAMPLES, a_page, a_pool

pytest.importorskip("sentence_transformers")

LENGTHS = (1, 9, 40, 23)
NOT_BARE = ("colchunk", "docpruner", "pool2d", "prune-then-merge")


@pytest.fixture(params=[name for name in sorted(METHODS) if name not in NOT_BARE])
def pooling(request):
    from pagefacets.adapters.sentence_transformers import TokenPooling

    options = {**FEWER_SAMPLES.get(request.param, {}), **({} if request.param == "identity" else {"ratio": 0.2})}
    return TokenPooling(request.param, pool=a_pool(), **options)


@pytest.fixture(scope="module")
def documents():
    return [torch.nn.functional.normalize(a_page(n, seed=n).vectors, dim=1) for n in LENGTHS]


def features(documents, side="right"):
    padded = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True, padding_value=7.0, padding_side=side)
    ones = [torch.ones(len(rows), dtype=torch.long) for rows in documents]
    mask = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True, padding_side=side)
    return {"token_embeddings": padded, "attention_mask": mask}


def rows_of(features):
    return [rows[mask.bool()] for rows, mask in zip(*features.values(), strict=True)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_only_what_the_mask_marks_is_pooled_and_the_new_mask_marks_what_is_kept(pooling, documents, side):
    """Padding is no zero here, and would be seen in the result."""
    expected = [pooling.choice.compressor.compress(rows, a_pool()).vectors for rows in documents]
    for found, rows in zip(rows_of(pooling(features(documents, side))), expected, strict=True):
        torch.testing.assert_close(found, rows, atol=1e-6, rtol=0)


def test_other_tasks_pass_untouched(pooling, documents):
    given = features(documents)
    asked = pooling(dict(given), task="query")
    assert all(asked[name] is value for name, value in given.items())
    assert pooling.pool(documents, task="query") is documents
    assert len(rows_of(pooling(given, task="document"))) == len(documents)


def test_a_document_alone_and_among_others(pooling, documents):
    together = pooling.pool(documents)
    for rows, found in zip(documents, together, strict=True):
        assert torch.equal(pooling.pool([rows])[0], found)
    for rows, found in zip(documents, together, strict=True):
        assert 1 <= len(found) <= pooling.choice.compressor._budget(pf.PageVectors(rows))


def test_batches_without_documents_and_documents_without_vectors(pooling):
    empty = {"token_embeddings": torch.zeros(0, 5, 16), "attention_mask": torch.zeros(0, 5)}
    assert pooling(empty)["token_embeddings"].shape == (0, 5, 16)
    assert pooling.pool([]) == []
    assert pooling.pool_one(torch.zeros(0, 16)).shape == (0, 16)


def test_copies_and_a_saved_module_do_the_same(pooling, documents, tmp_path):
    expected = pooling.pool(documents)
    pooling.save(str(tmp_path))
    for again in (copy.deepcopy(pooling), pickle.loads(pickle.dumps(pooling)), type(pooling).load(str(tmp_path))):
        assert again.get_config_dict() == pooling.get_config_dict()
        assert all(torch.equal(one, other) for one, other in zip(again.pool(documents), expected, strict=True))


def test_the_methods_left_out_are_those_that_bare_vectors_do_not_suffice(documents):
    for name in NOT_BARE:
        with pytest.raises(pf.InputError, match=name):
            pf.compressor(name, ratio=0.2).compress(documents[2], a_pool())
