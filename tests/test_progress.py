"""The progress bar, as it is left on standard error."""

import pytest

from pagefacets.progress import track


@pytest.mark.parametrize(("total", "counted", "left"), [(3, "3/3", True), (None, "3/?", False)])
def test_time_left_is_told_where_it_can_be(capsys, total, counted, left):
    assert list(track(iter("abc"), total, "compressing", unit="pages")) == ["a", "b", "c"]
    output, errors = capsys.readouterr()
    assert output == ""
    assert "compressing" in errors
    assert counted in errors
    assert ("left" in errors) == left


def test_nothing_is_shown_where_there_is_nothing(capsys):
    assert list(track([], 0, "compressing", unit="pages")) == []
    assert capsys.readouterr().err == ""
