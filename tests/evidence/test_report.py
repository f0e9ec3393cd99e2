"""What a report says: its numbers are the cells', its page stands alone, and nothing in its figures collides."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet as parquet
import pytest

import pagefacets as pf
from pagefacets.evidence.plots import COLOURS, plot_choice, plot_front, plot_sweep
from pagefacets.evidence.publish import figures, to_html, to_markdown
from pagefacets.evidence.sweep import PoolSpec, Sweep, budgets, setting
from pagefacets.evidence.tables import by_budget, by_group, details, leads, markdown, reasons
from tests.evidence.corpora import labelled
from tests.evidence.test_plots import assert_readable

RATIOS = [0.5, 0.25, 0.1]


@pytest.fixture(scope="module")
def data():
    return labelled(), labelled("more", queries=8, seed=1)


@pytest.fixture(scope="module")
def report(data):
    return pf.benchmark(data, "identity,magic,ward,kmeans,pool1d,random,docpruner", RATIOS, workers=1)


@pytest.fixture(scope="module")
def sweeps():
    sizes = [setting("magic", r, pool=PoolSpec(size=n), label=f"{n}, {r}") for r in (0.5, 0.2) for n in (5, 10, 20)]
    ways = [setting("magic", 0.2, pool=PoolSpec(variant=way, size=9), label=way) for way in ("magic", "random")]
    return (
        Sweep("figure6b", "Calibration tokens", tuple(sizes), "size"),
        Sweep("figure6a", "How the pool is chosen", tuple(ways), "variant", "names"),
        budgets("identity,magic", [0.2]),
    )


@pytest.fixture(scope="module")
def swept(data, sweeps):
    return pf.benchmark(data[0], sweeps=sweeps, workers=1)


class Page(HTMLParser):
    """A page's text, its tables, and every address in it; an element left open or closed twice is an error."""

    VOID = ("meta", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.tables, self.cell = [], [], [], None
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "data", "action")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self.cell)
            self.cell = None


def test_the_first_table_holds_the_means_and_marks_the_best(report):
    table = by_budget(report, report.sweeps[0])
    assert table.headings == ("method", "0.5", "0.25", "0.1")
    assert [row[0] for row in table.rows] == ["magic", "ward", "kmeans", "pool1d", "random"]
    for column, ratio in enumerate(RATIOS, start=1):
        means = [report.row(row[0], ratio).measures["ndcg@5"].mean for row in table.rows]
        assert [row[column] for row in table.rows] == [f"{100 * mean:.1f}" for mean in means]
        best = {place for place, at in table.best if at == column}
        assert int(np.argmax(means)) in best


def test_every_row_has_its_interval_its_sizes_and_its_times(report):
    table = details(report, report.sweeps[0])
    assert table.headings[2:5] == ("nDCG@5", "Recall@5", "MRR")
    assert len(table.rows) == 1 + 5 * 3
    assert table.breaks == {1, 6, 11}
    row = report.row("ward", 0.25)
    found = row.measures["recall@5"]
    (said,) = (texts for texts in table.rows if texts[:2] == ("0.25", "ward"))
    assert said[3] == f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    assert said[5:] == (f"{row.vectors:,.1f}", f"{row.nbytes:,.0f}", f"{row.ms:,.2f}", f"{row.query_ms:,.2f}")


def test_data_sets_stand_side_by_side_with_their_average(report):
    table = by_group(report, report.sweeps[0])
    assert table.headings == ("share", "method", "small", "more", "average")
    row = report.row("kmeans", 0.1)
    (said,) = (texts for texts in table.rows if texts[:2] == ("0.1", "kmeans"))
    assert said[2:] == tuple(f"{100 * value:.1f}" for value in (*row.groups.values(), row.measures["ndcg@5"].mean))


def test_leads_and_reasons(report):
    table = leads(report)
    assert {row[1] for row in table.rows} == {"ward", "kmeans", "pool1d", "random"}
    assert len(table.rows) == 4 * 3
    (why,) = reasons(report)
    assert re.match(r"docpruner cannot run: docpruner needs the importance .* \(small\)$", why)


def test_the_page_refers_to_nothing_outside_itself_and_holds_every_table(report):
    drawn = figures(report)
    text = to_html(report, drawn, command="pagefacets bench 'a & b' <c>")
    page = Page(text)
    assert len(page.addresses) == len(drawn) == 2
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in re.sub(r"base64,[^']*", "", text)
    assert "&#x27;a &amp; b&#x27; &lt;c&gt;" in text
    shown = [by_budget(report, report.sweeps[0]), details(report, report.sweeps[0])]
    shown += [by_group(report, report.sweeps[0]), leads(report)]
    assert page.tables == [[list(table.headings), *map(list, table.rows)] for table in shown]


def test_markdown_holds_the_same_tables(report):
    text = to_markdown(report, figures(report))
    for table in (by_budget(report, report.sweeps[0]), details(report, report.sweeps[0]), leads(report)):
        assert markdown(table) in text
        lines = markdown(table).splitlines()
        assert {line.count("|") for line in lines} == {len(table.headings) + 1}
    assert "![" in text
    assert "docpruner cannot run" in text


def test_a_folder_holds_all_of_it(report, tmp_path):
    written = report.save(tmp_path)
    assert {path.name for path in written} == {
        "report.html",
        "report.md",
        "report.json",
        "cells.parquet",
        "queries.parquet",
        *(f"budgets-{kind}.{suffix}" for kind in ("sweep", "front") for suffix in ("png", "svg")),
    }
    assert all(path.stat().st_size > 500 for path in written)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {path.name for path in written}
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored == json.loads(json.dumps(report.to_dict()))

    cells = parquet.read_table(tmp_path / "cells.parquet").to_pylist()
    assert len(cells) == 2 * (1 + 5 * 3) * 3 + 2 * 3
    row = report.row("magic", 0.1)
    means = [c["mean"] for c in cells if (c["label"], c["ratio"], c["measure"]) == ("magic", 0.1, "ndcg@5")]
    assert np.mean(means) == pytest.approx(row.measures["ndcg@5"].mean)
    assert sum(c["unable"] is not None for c in cells) == 2 * 3

    queries = parquet.read_table(tmp_path / "queries.parquet").to_pylist()
    mine = [q for q in queries if (q["label"], q["ratio"], q["data"]) == ("ward", 0.5, "small")]
    assert [q["query"] for q in mine] == [f"q{i}" for i in range(11)]
    assert [q["mrr"] for q in mine] == report.strata(report.row("ward", 0.5).setting, report.measures[2])[0].tolist()


def test_budgets_are_drawn_from_the_widest_to_the_tightest_with_magics_interval(report):
    figure = plot_sweep(report, report.sweeps[0])
    assert_readable(figure)
    (axes,) = figure.axes
    assert axes.xaxis_inverted()
    drawn = {line.get_label(): line for line in axes.lines}
    for label in ("magic", "ward", "kmeans", "pool1d", "random"):
        means = [100 * report.row(label, ratio).measures["ndcg@5"].mean for ratio in sorted(RATIOS)]
        assert drawn[label].get_xdata().tolist() == sorted(RATIOS)
        assert drawn[label].get_ydata() == pytest.approx(means)
    assert drawn["magic"].get_color() == COLOURS[0]
    found = report.row("magic", 0.1).measures["ndcg@5"]
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert {corners[:, 1].min(), corners[:, 1].max()} <= {
        100 * bound
        for ratio in RATIOS
        for one in [report.row("magic", ratio).measures["ndcg@5"]]
        for bound in (one.low, one.high)
    }
    assert 100 * found.low in corners[:, 1]
    whole = 100 * report.whole.measures["ndcg@5"].mean
    assert drawn[f"all vectors: {whole:.1f}"].get_ydata() == pytest.approx([whole, whole])


def test_no_row_is_above_and_left_of_the_front(report):
    figure = plot_front(report, report.sweeps[0])
    assert_readable(figure)
    front = next(line for line in figure.axes[0].lines if line.get_label() == "the front")
    sizes, values = front.get_xdata(), front.get_ydata()
    assert (np.diff(sizes) > 0).all()
    assert (np.diff(values) > 0).all()
    points = [(row.nbytes, 100 * row.measures["ndcg@5"].mean) for row in report.rows]
    assert set(zip(sizes.tolist(), values.tolist(), strict=True)) <= set(points)
    for size, value in points:
        assert any(at <= size and height >= value - 1e-9 for at, height in zip(sizes, values, strict=True))


def test_options_are_drawn_with_a_curve_for_each_ratio(swept, sweeps):
    sizes, ways, _ = sweeps
    figure = plot_choice(swept, sizes)
    assert_readable(figure)
    curves = [line for line in figure.axes[0].lines if line.get_label().startswith("r = ")]
    assert [curve.get_label() for curve in curves] == ["r = 0.5", "r = 0.2"]
    for curve, ratio in zip(curves, (0.5, 0.2), strict=True):
        means = [100 * swept.row(f"{n}, {ratio}").measures["ndcg@5"].mean for n in (5, 10, 20)]
        assert curve.get_xdata().tolist() == [5, 10, 20]
        assert curve.get_ydata() == pytest.approx(means)
    named = plot_choice(swept, ways)
    assert_readable(named)
    assert [label.get_text() for label in named.axes[0].get_xticklabels()] == ["MAGIC", "Random"]


def test_a_report_of_several_sweeps_has_a_part_for_each(swept, sweeps):
    drawn = figures(swept)
    assert set(drawn) == {"figure6a", "figure6b", "budgets-sweep", "budgets-front"}
    page = Page(to_html(swept, drawn))
    assert len(page.addresses) == 4
    text = to_markdown(swept, drawn)
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")][:3] == [one.title for one in sweeps]
    assert by_budget(swept, sweeps[0]) is None
    assert by_group(swept, sweeps[0]) is None


def test_a_report_in_which_nothing_ran_still_says_why(data, tmp_path):
    report = pf.benchmark(data[0], "docpruner", [0.5])
    assert report.rows == ()
    report.save(tmp_path)
    assert "docpruner cannot run" in (tmp_path / "report.html").read_text()
    with pytest.raises(pf.InputError, match="has no rows to draw"):
        plot_sweep(report, report.sweeps[0])
