"""Where rows lie on a page: known grids and boxes, and the law that no weight of a placed row is lost."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.errors import InputError
from pagefacets.evidence.places import Layout

NAN = float("nan")


def corners_of(layout, n):
    """The corners of each row's place, or None."""
    spots = layout.spots(n)
    return [None if at < 0 else spots.corners[at].tolist() for at in spots.row.tolist()]


def test_cells_run_along_the_rows_of_the_grid():
    found = corners_of(Layout(grid=(3, 2)), 6)
    assert found[0] == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert found[2] == pytest.approx([2 / 3, 0, 1, 1 / 2])
    assert found[4] == pytest.approx([1 / 3, 1 / 2, 2 / 3, 1])
    assert Layout(grid=(3, 2)).spots(6).cell.sort().values.tolist() == list(range(6))


def test_rows_that_are_no_patches_have_no_place():
    mask = [False, True, True, False, True, True]
    found = corners_of(Layout(grid=(2, 2), image_mask=mask), 6)
    assert found[0] is None
    assert found[3] is None
    assert found[4] == pytest.approx([0, 0.5, 0.5, 1])


def test_boxes_are_put_in_order_and_within_the_page_and_unknown_ones_are_nowhere():
    boxes = [[0.4, 0.5, 0.2, 0.3], [-1, 0.5, 0.25, 9], [NAN, 0, 1, 1], [0, 0, float("inf"), 1]]
    found = corners_of(Layout(boxes=boxes), 4)
    assert found[0] == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert found[1] == pytest.approx([0, 0.5, 0.25, 1])
    assert found[2:] == [None, None]


def test_a_box_goes_before_the_cell():
    boxes = np.full((4, 4), np.nan)
    boxes[2] = [0.1, 0.2, 0.3, 0.4]
    layout = Layout(grid=(2, 2), boxes=boxes)
    assert corners_of(layout, 4)[2] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert corners_of(layout, 4)[3] == pytest.approx([0.5, 0.5, 1, 1])
    spots = layout.spots(4)
    assert spots.cell[spots.row].tolist() == [0, 1, -1, 3]


def test_rows_in_one_box_are_one_place():
    word, other = [0.1, 0.1, 0.2, 0.2], [0.3, 0.1, 0.4, 0.2]
    spots = Layout(boxes=[word, other, word]).spots(3)
    assert len(spots.corners) == 2
    gathered = spots.gathered(torch.tensor([0.25, 0.5, 0.125]))
    assert gathered[spots.row].tolist() == [0.375, 0.5, 0.375]


@given(data=st.data())
def test_the_weight_of_every_placed_row_arrives(data):
    columns, rows, extra = (data.draw(st.integers(low, 6)) for low in (1, 1, 0))
    n = columns * rows + extra
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    mask = rng.permutation([True] * (columns * rows) + [False] * extra)
    boxes = rng.integers(0, 4, (n, 4)) / 4
    boxes[rng.random(n) < 0.5] = np.nan
    spots = Layout((columns, rows), mask, boxes).spots(n)
    weights = torch.from_numpy(rng.random(n))
    placed = torch.from_numpy(mask | ~np.isnan(boxes[:, 0]))
    torch.testing.assert_close(spots.gathered(weights).sum(), weights[placed].sum())
    assert torch.equal(spots.row >= 0, placed)
    assert bool((spots.corners[:, :2] <= spots.corners[:, 2:]).all())


def test_a_page_of_which_nothing_is_known():
    spots = Layout().spots(5)
    assert len(spots.corners) == 0
    assert spots.gathered(torch.ones(5)).tolist() == []


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"grid": (2, 2)}, "4 cells but the page has 5 patches"),
        ({"grid": (2, 2), "image_mask": [True] * 4}, r"image_mask must have shape \(5,\)"),
        ({"boxes": [[0, 0, 1, 1]] * 3}, r"boxes must have shape \(5, 4\)"),
    ],
)
def test_what_does_not_fit_the_page_is_refused(layout, message):
    with pytest.raises(InputError, match=message):
        Layout(**layout).spots(5)


@pytest.mark.parametrize("size", [(0, 1), (1,), (1, float("inf")), (NAN, 1)])
def test_a_size_is_two_positive_numbers(size):
    with pytest.raises(InputError, match="two positive numbers"):
        Layout(size=size)
