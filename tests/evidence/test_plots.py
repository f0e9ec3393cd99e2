import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from pagefacets.data import Facets, PageVectors
from pagefacets.errors import InputError
from pagefacets.evidence.diagnostics import Diagnostics, diagnose_many
from pagefacets.evidence.misalignment import lorenz
from pagefacets.evidence.plots import COLOURS, plot_budget, plot_demand, save


def diagnosed(k: int, seed: int = 0) -> Diagnostics:
    g = torch.Generator().manual_seed(seed)
    pages = [PageVectors(torch.randn(40, 8, generator=g)) for _ in range(3)]
    facets = [Facets(page.vectors[:k], torch.zeros(40, dtype=torch.int64)) for page in pages]
    return diagnose_many(pages, facets, [torch.randn(6, 8, generator=g) for _ in range(5)])


@pytest.fixture(scope="module")
def series() -> dict[str, list[Diagnostics]]:
    return {
        "magic": [diagnosed(k) for k in (2, 20, 4, 10)],
        "light-colpali": [diagnosed(k, seed=1) for k in (20, 10, 4, 2)],
    }


def texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every visible piece of text with the box it is drawn in."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    undrawn = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        undrawn |= {
            label for tick in ticks if not low <= tick.get_loc() <= high for label in (tick.label1, tick.label2)
        }
    return [
        (artist.get_text(), artist.get_window_extent(canvas.get_renderer()))
        for artist in figure.findobj(match=Text)
        if artist.get_text() and artist.get_visible() and artist not in undrawn
    ]


def assert_readable(figure: Figure) -> None:
    inside = Bbox.from_extents(-1, -1, figure.bbox.x1 + 1, figure.bbox.y1 + 1)
    boxes = texts(figure)
    for said, box in boxes:
        assert inside.contains(box.x0, box.y0), f"{said!r} is cut off"
        assert inside.contains(box.x1, box.y1), f"{said!r} is cut off"
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} lies on {other!r}"


def test_the_demand_figure_draws_the_curve_and_says_its_value_at_a_fifth() -> None:
    found = diagnosed(5)
    figure = plot_demand(found)
    drawn = {line.get_label(): line for line in figure.axes[0].lines}
    assert drawn["retrieval demand"].get_ydata() == pytest.approx(100 * found.lorenz.mass.numpy())
    assert drawn["uniform demand"].get_xydata().tolist() == [[0, 0], [100, 100]]
    assert f"top 20% of rows:\n{100 * found.top_share:.0f}% of selections" in dict(texts(figure))


@pytest.mark.parametrize("weights", [[1.0] * 50, [1.0] + [0.0] * 49, [3.0, 2, 1, 1, 1]])
def test_the_demand_figure_stays_readable_however_demand_lies(weights: list[float]) -> None:
    assert_readable(plot_demand(lorenz(torch.tensor(weights))))


def test_several_demand_curves_carry_their_values_in_the_legend() -> None:
    curves = {f"collection number {i}": lorenz(torch.arange(1.0, 30) ** i) for i in range(len(COLOURS))}
    figure = plot_demand(curves)
    assert_readable(figure)
    for name, curve in curves.items():
        assert f"{name}: {100 * curve.at(0.2):.0f}% on the top 20%" in dict(texts(figure))


def test_the_budget_figure_draws_both_measures_and_the_allocated_facets(series: dict[str, list[Diagnostics]]) -> None:
    figure = plot_budget(series)
    left, right = figure.axes
    by_ratio = sorted(series["magic"], key=lambda found: found.ratio)
    error, active = left.lines[0], right.lines[1]
    assert error.get_xydata().tolist() == [[found.ratio, found.covering_error] for found in by_ratio]
    assert active.get_xydata().tolist() == [[found.ratio, found.effective_facets] for found in by_ratio]
    assert right.lines[0].get_xydata().tolist() == [[0.05, 2], [0.1, 4], [0.25, 10], [0.5, 20]]
    assert left.get_xlim()[0] > left.get_xlim()[1]
    assert_readable(figure)


def test_the_budget_figure_stays_readable_with_every_colour_taken_and_with_one_point() -> None:
    found = [diagnosed(k) for k in (1, 2, 3, 4, 5, 8, 12, 13, 20, 40)]
    assert_readable(plot_budget({f"prune-then-merge {i}": found for i in range(len(COLOURS))}))
    assert_readable(plot_budget({"magic": found[:1]}))


def test_figures_are_saved_by_suffix(tmp_path: Path) -> None:
    figure = plot_demand(diagnosed(5))
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    for suffix, start in starts.items():
        assert save(figure, tmp_path / f"demand{suffix}").read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"cannot tell the format of .*demand.txt': end it in .pdf, .png, .svg"):
        save(figure, tmp_path / "demand.txt")


def test_more_curves_than_colours_are_refused() -> None:
    curves = {str(i): lorenz(torch.ones(3)) for i in range(len(COLOURS) + 1)}
    with pytest.raises(InputError, match="1 to 7 curves that can be told apart, got 8"):
        plot_demand(curves)
    with pytest.raises(InputError, match="1 to 7 curves that can be told apart, got 0"):
        plot_demand({})


def test_a_series_without_points_is_refused() -> None:
    with pytest.raises(InputError, match="no diagnostics"):
        plot_budget({"magic": []})


def test_no_window_system_is_touched_and_a_missing_matplotlib_names_its_extra() -> None:
    script = """
import sys, torch
from pagefacets.errors import MissingExtraError
from pagefacets.evidence.misalignment import lorenz
from pagefacets.evidence.plots import plot_demand
assert "matplotlib" not in sys.modules
plot_demand(lorenz(torch.ones(5)))
assert "matplotlib.pyplot" not in sys.modules
for name in [name for name in sys.modules if name.startswith("matplotlib")]:
    sys.modules[name] = None
try:
    plot_demand(lorenz(torch.ones(5)))
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'pagefacets[plots]'" in done.stdout
