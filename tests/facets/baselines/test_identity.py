"""The identity: every row, and no budget."""

import pytest
import torch

import pagefacets as pf


def test_all_rows_normalised_in_their_order(draw):
    D = torch.from_numpy(draw(30))
    facets = pf.compressor("identity").compress(D)
    torch.testing.assert_close(facets.vectors, torch.nn.functional.normalize(D, dim=1), atol=1e-6, rtol=0)
    assert facets.assignment.tolist() == list(range(30))
    assert facets.ratio == 1.0


def test_scores_are_those_of_the_page(draw):
    D, query = torch.nn.functional.normalize(torch.from_numpy(draw(30)), dim=1), torch.from_numpy(draw(7, seed=1))
    facets = pf.compressor("identity").compress(D)
    torch.testing.assert_close(pf.maxsim(query, [facets]), pf.maxsim(query, [D]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("option", [{"ratio": 0.1}, {"ratio": 1.0}, {"budget": 3}, {"rounding": "floor"}])
def test_a_budget_is_refused(option):
    (argument,) = option
    with pytest.raises(pf.InputError, match=f"identity keeps every row: leave out {argument}"):
        pf.compressor("identity", **option)
