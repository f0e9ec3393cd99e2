"""Windows over a long text: every token is read in context and kept once."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.vectors.windows import windows


@st.composite
def cases(draw):
    room = draw(st.integers(2, 200))
    return draw(st.integers(0, 5000)), room, draw(st.integers(0, room - 1))


@given(cases())
def test_every_token_is_kept_once_in_order(case):
    n, room, overlap = case
    found = windows(n, room, overlap)
    assert [token for window in found for token in range(window.first, window.last)] == list(range(n))


@given(cases())
def test_windows_fit_and_lie_within_the_text(case):
    n, room, overlap = case
    for window in windows(n, room, overlap):
        assert 0 <= window.start <= window.first <= window.last <= window.stop <= n
        assert window.stop - window.start <= room


@given(cases())
def test_neighbours_share_enough(case):
    n, room, overlap = case
    found = windows(n, room, overlap)
    for before, after in itertools.pairwise(found):
        assert before.start < after.start
        assert before.stop - after.start >= overlap


@given(cases())
def test_there_are_no_more_windows_than_it_takes_and_they_are_alike(case):
    n, room, overlap = case
    found = windows(n, room, overlap)
    reach = [room + i * (room - overlap) for i in range(len(found))]
    assert reach[-1] >= n
    assert len(found) == 1 or reach[-2] < n
    assert len({window.stop - window.start for window in found}) == 1


@given(cases())
def test_a_token_is_kept_where_it_stands_furthest_from_the_edges(case):
    """The text's own start and end are no edges: nothing is missing beyond them."""
    n, room, overlap = case
    found = windows(n, room, overlap)

    def context(token, window):
        before = token - window.start if window.start else n
        return min(before, window.stop - 1 - token if window.stop < n else n)

    for window in found:
        for token in {window.first, window.last - 1} & set(range(n)):
            held = [context(token, one) for one in found if one.start <= token < one.stop]
            assert context(token, window) >= max(held) - 1


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (0, [(0, 0, 0, 0)]),
        (10, [(0, 10, 0, 10)]),
        (11, [(0, 8, 0, 5), (3, 11, 5, 11)]),
        (16, [(0, 10, 0, 8), (6, 16, 8, 16)]),
        (22, [(0, 10, 0, 8), (6, 16, 8, 14), (12, 22, 14, 22)]),
    ],
)
def test_known_windows(n, expected):
    assert [tuple(window) for window in windows(n, 10, 4)] == expected
