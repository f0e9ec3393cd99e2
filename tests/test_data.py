"""The nouns: what they accept, what they refuse, and how they travel."""

import pickle

import numpy as np
import pytest
import torch

import pagefacets as pf


def test_a_page_shares_the_callers_memory_where_it_can():
    array = np.ones((3, 4), dtype=np.float16)
    assert pf.PageVectors(array).vectors.data_ptr() == array.ctypes.data
    tensor = torch.ones(3, 4)
    assert pf.PageVectors(tensor).vectors.data_ptr() == tensor.data_ptr()


def test_a_page_takes_arrays_that_torch_does_not():
    frozen = np.ones((3, 4), dtype=np.float32)
    frozen.flags.writeable = False
    for odd in (frozen, np.ones((3, 4))[::-1], np.ones((3, 4), dtype=">f4"), [[1.0, 2.0]]):
        page = pf.PageVectors(odd)
        assert page.n == len(odd)
        assert torch.equal(page.vectors, torch.ones_like(page.vectors)) or page.n == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"vectors": np.ones(4)}, r"two axes .* got shape \(4,\)"),
        ({"vectors": np.ones((0, 4))}, "empty"),
        ({"vectors": np.ones((2, 4), dtype=np.int8)}, "floating point"),
        ({"vectors": np.array([["a"]])}, "numbers"),
        ({"vectors": np.ones((6, 4)), "grid": (2, 2)}, "4 cells but the page has 6 rows"),
        ({"vectors": np.ones((6, 4)), "grid": (0, 6)}, "two positive counts"),
        ({"vectors": np.ones((6, 4)), "image_mask": [True]}, r"image_mask must have shape \(6,\)"),
        ({"vectors": np.ones((2, 4)), "boxes": np.ones((2, 3))}, r"boxes must have shape \(2, 4\)"),
        ({"vectors": np.ones((2, 4)), "importance": np.ones(3)}, r"importance must have shape \(2,\)"),
    ],
)
def test_a_page_that_does_not_fit_together_is_refused(arguments, sentence):
    with pytest.raises(pf.InputError, match=sentence):
        pf.PageVectors(**arguments)


def test_the_grid_counts_image_rows():
    mask = np.array([False, True, True, True, True, False])
    assert pf.PageVectors(np.ones((6, 4)), grid=(2, 2), image_mask=mask).grid == (2, 2)
    with pytest.raises(pf.InputError, match="rows that image_mask marks"):
        pf.PageVectors(np.ones((6, 4)), grid=(3, 2), image_mask=mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_pages_and_facets_survive_pickling(dtype):
    page = pf.PageVectors(
        torch.randn(4, 3).to(dtype), grid=(2, 1), image_mask=[True, True, False, False], boxes=np.ones((4, 4)), id="ü"
    )
    facets = pf.Facets(
        page.vectors[:2],
        torch.tensor([0, 1, 1, 0]),
        demand=torch.ones(4) / 4,
        plan=torch.ones(2, 4) / 4,
        offset=0.5,
        id="ü",
    )
    for thing in (page, facets):
        back = pickle.loads(pickle.dumps(thing))
        for name in thing.__dataclass_fields__:
            ours, theirs = getattr(thing, name), getattr(back, name)
            assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_evidence_is_the_members_weighted_by_demand():
    facets = pf.Facets(
        torch.eye(3), torch.tensor([0, 1, 0, -1]), demand=torch.tensor([0.1, 0.5, 0.3, 0.1]), plan=torch.ones(3, 4) / 4
    )
    assert facets.members(0).tolist() == [0, 2]
    torch.testing.assert_close(facets.evidence(0), torch.tensor([0.25, 0.0, 0.75, 0.0]))
    assert facets.evidence(2).tolist() == [0.0] * 4
    assert facets.evidence(-1, weights="transport").tolist() == [0.25] * 4
    with pytest.raises(pf.InputError, match="no facet 3: this page has 3"):
        facets.evidence(3)
    with pytest.raises(pf.InputError, match="keep_plan=True"):
        pf.Facets(torch.eye(2), torch.tensor([0, 1])).evidence(0, weights="transport")
