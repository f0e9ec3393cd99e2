"""The figures: how concentrated demand is, what each method makes of its budget, and all methods side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pagefacets.errors import InputError
from pagefacets.evidence.comparison import REFERENCE, Cell, Comparison
from pagefacets.evidence.diagnostics import TOP_SHARE, Diagnostics, PageDiagnostics
from pagefacets.evidence.misalignment import Lorenz
from pagefacets.evidence.report import LEADER, Report, Row
from pagefacets.evidence.sweep import VARIANTS, Sweep
from pagefacets.extras import require
from pagefacets.vectors.formats.aside import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any

__all__ = [
    "check_target",
    "plot_budget",
    "plot_choice",
    "plot_comparison",
    "plot_demand",
    "plot_front",
    "plot_sweep",
    "save",
]

Curve: TypeAlias = Diagnostics | PageDiagnostics | Lorenz

# Okabe and Ito's palette, apart for every common kind of colour vision; its yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#6B6B6B"
# Inches of figure for one more line of a legend below it.
LEGEND_LINE = 0.24
SUFFIXES = (".pdf", ".png", ".svg")


def plot_demand(curves: Curve | Mapping[str, Curve]) -> Figure:
    """Figure 1(a): the share of demand that the most demanded rows hold, against the uniform diagonal."""
    named = dict(curves) if isinstance(curves, Mapping) else {"": curves}
    alone = len(named) == 1
    figure, axes = _figure(4.8, 3.8 if alone else 3.9 + LEGEND_LINE * len(named), list(named))
    axes.plot([0, 100], [0, 100], color=GREY, linestyle=":", linewidth=1.4, label="uniform demand")
    for i, (name, curve) in enumerate(named.items()):
        found = curve if isinstance(curve, Lorenz) else curve.lorenz
        top, shown = 100 * TOP_SHARE, 100 * found.at(TOP_SHARE)
        label = name or "retrieval demand" if alone else f"{name}: {shown:.0f}% on the top {top:.0f}%"
        axes.plot((100 * found.rho).numpy(), (100 * found.mass).numpy(), color=COLOURS[i], linewidth=2, label=label)
        axes.plot([top], [shown], MARKERS[i], color=COLOURS[i], markersize=6)
        if alone:
            axes.annotate(
                f"top {top:.0f}% of rows:\n{shown:.0f}% of selections",
                (top, shown),
                xytext=(16, -34),
                textcoords="offset points",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
                arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.8, "shrinkB": 4},
            )
    axes.axvline(100 * TOP_SHARE, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    axes.set(xlabel="top share of the page's rows (%)", ylabel="share of selections (%)", xlim=(0, 100), ylim=(0, 102))
    if alone:
        axes.legend(loc="lower right", frameon=False)
    else:
        figure.legend(loc="outside lower center", frameon=False)
    return figure


def plot_budget(series: Mapping[str, Sequence[Diagnostics]]) -> Figure:
    """Figure 1(b): each method's covering error (left) and effective facets (right) as the budget shrinks."""
    points = [found for method in series.values() for found in method]
    if not points:
        raise InputError("series hold no diagnostics: pass at least one method with one budget")
    figure, left = _figure(6.6, 3.6 + LEGEND_LINE * len(series), list(series))
    right = left.twinx()
    budgets = sorted({(found.ratio, found.allocated_facets) for found in points})
    (reference,) = right.plot(
        *zip(*budgets, strict=True), color=GREY, linestyle=":", marker=".", linewidth=1.6, label="allocated $K$ (right)"
    )
    errors, actives = [], []
    for i, (method, found) in enumerate(series.items()):
        ordered = sorted(found, key=lambda one: one.ratio)
        ratios = [one.ratio for one in ordered]
        style: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 5.5, "linewidth": 1.8}
        (error,) = left.plot(ratios, [one.covering_error for one in ordered], **style)
        (active,) = right.plot(
            ratios, [one.effective_facets for one in ordered], **style, linestyle="--", markerfacecolor="white"
        )
        error.set_label(f"{method}: $C_{{\\mathrm{{err}}}}$ (left)")
        active.set_label(f"{method}: $K_{{\\mathrm{{eff}}}}$ (right)")
        errors.append(error)
        actives.append(active)
    _budget_axis(left, sorted({ratio for ratio, _ in budgets}))
    left.set(
        xlabel="share of vectors kept (the budget shrinks to the right)", ylabel="covering error $C_{\\mathrm{err}}$"
    )
    left.set_ylim(bottom=0)
    right.set_ylabel("effective facets $K_{\\mathrm{eff}}$")
    right.set_yscale("log", base=2)
    right.set_ylim(bottom=0.9)
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.spines["top"].set_visible(False)
    figure.legend(handles=[*errors, reference, *actives], loc="outside lower center", ncols=2, frameon=False)
    return figure


def plot_comparison(found: Comparison) -> Figure:
    """Each method's covering error against the bytes it really leaves of a page; nearer the lower left is better."""
    methods: dict[str, list[Cell]] = {}
    for cell in sorted(found.cells, key=lambda one: (one.nbytes, one.ratio)):
        if cell.method != REFERENCE:
            methods.setdefault(cell.method, []).append(cell)
    figure, axes = _figure(7.4, 4.4, list(methods), most=2 * len(COLOURS))
    order = list(dict.fromkeys(cell.method for cell in found.cells if cell.method in methods))
    # From the top of the figure down, where the page is smallest.
    for method in sorted(methods, key=lambda name: methods[name][0].covering_error, reverse=True):
        axes.plot(
            [cell.nbytes for cell in methods[method]],
            [cell.covering_error for cell in methods[method]],
            **_style(order.index(method)),
            label=method,
        )
    axes.axvline(found.nbytes, color=GREY, linestyle=":", linewidth=1.4, label="the whole page")
    _bytes_axis(axes, found.nbytes, sorted({cell.ratio for cell in found.cells if cell.method in methods}))
    axes.set(xlabel="bytes per page, with the share of the page they are", ylabel="covering error $C_{\\mathrm{err}}$")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def plot_sweep(report: Report, sweep: Sweep) -> Figure:
    """Figure 3: answers against the share of vectors kept, with the interval of MAGIC, else of the first method."""
    series = _series(report, sweep, lambda row: row.setting.ratio)
    figure, axes = _figure(7.4, 4.4, list(series), most=2 * len(COLOURS))
    name = str(report.measures[0])
    for place, (label, rows) in enumerate(series.items()):
        shares = sorted(rows)
        means = [100 * _mean(rows[share], name) for share in shares]
        axes.plot(shares, means, **_style(place), label=label, zorder=3 - place / 100)
    first, rows = next(iter(series.items()))
    found = [rows[share].measures[name] for share in sorted(rows)]
    bounds = [100 * one.low for one in found], [100 * one.high for one in found]
    axes.fill_between(
        sorted(rows), *bounds, color=COLOURS[0], alpha=0.13, linewidth=0, label=f"95% interval\nof {first}"
    )
    _whole_line(report, axes)
    _budget_axis(axes, sorted({ratio for rows in series.values() for ratio in rows}))
    axes.set(
        xlabel="share of vectors kept (the budget shrinks to the right)", ylabel=f"{report.measures[0].title} × 100"
    )
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def plot_front(report: Report, sweep: Sweep) -> Figure:
    """Answers against the bytes that are really kept, and the front that no setting betters; up and left is better."""
    series = _series(report, sweep, lambda row: row.nbytes)
    figure, axes = _figure(7.4, 4.4, list(series), most=2 * len(COLOURS))
    name = str(report.measures[0])
    whole = report.whole
    rows = [row for of in series.values() for row in of.values()]
    front: list[Row] = []
    for row in sorted([*rows, *([] if whole is None else [whole])], key=lambda row: (row.nbytes, -_mean(row, name))):
        if not front or _mean(row, name) > _mean(front[-1], name):
            front.append(row)
    for place, (label, of) in enumerate(series.items()):
        style = {**_style(place), "linestyle": "none", "markersize": 6.5}
        axes.plot(
            list(of), [100 * _mean(row, name) for row in of.values()], **style, label=label, zorder=3 - place / 100
        )
    if whole is not None:
        value = 100 * _mean(whole, name)
        axes.plot([whole.nbytes], [value], "*", color=GREY, markersize=11, label=f"all vectors: {value:.1f}")
    axes.plot(
        [row.nbytes for row in front],
        [100 * _mean(row, name) for row in front],
        color=GREY,
        linewidth=5,
        alpha=0.3,
        drawstyle="steps-post",
        zorder=1,
        label="the front",
    )
    if whole is not None:
        _bytes_axis(axes, whole.nbytes, sorted({row.setting.ratio for row in rows if row.setting.ratio is not None}))
        axes.set_xlabel("bytes per page, with the share of the page they are")
    else:
        axes.set_xscale("log")
        axes.set_xlabel("bytes per page")
        axes.xaxis.set_major_formatter(lambda value, _: _bytes(value))
        axes.xaxis.set_minor_formatter("")
    axes.set_ylabel(f"{report.measures[0].title} × 100")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def plot_choice(report: Report, sweep: Sweep) -> Figure:
    """Figures 5, 6 and 9: answers against the values of one option, a curve for each ratio, with 95% intervals."""
    wanted = set(sweep.settings)
    curves: dict[float | None, list[Row]] = {}
    for row in report.rows:
        if row.setting in wanted:
            curves.setdefault(row.setting.nominal, []).append(row)
    figure, axes = _figure(4.8, 3.4 + LEGEND_LINE, [str(ratio) for ratio in curves])
    values = list(dict.fromkeys(one.option(sweep.axis) for one in sweep.settings))
    places: dict[object, Any] = {value: i if sweep.scale == "names" else value for i, value in enumerate(values)}
    for i, (ratio, rows) in enumerate(curves.items()):
        found = [row.measures[str(report.measures[0])] for row in rows]
        at = [places[row.setting.option(sweep.axis)] for row in rows]
        means = [100 * one.mean for one in found]
        label = "" if ratio is None else f"r = {ratio:g}"
        if sweep.scale == "names":
            beside = [place + 0.16 * (i - (len(curves) - 1) / 2) for place in at]
            spread = [[100 * (one.mean - one.low) for one in found], [100 * (one.high - one.mean) for one in found]]
            style = {**_style(i), "linestyle": "none"}
            axes.errorbar(beside, means, spread, **style, label=label, elinewidth=0.9, capsize=3)
        else:
            axes.plot(at, means, **_style(i), label=label)
            bounds = [100 * one.low for one in found], [100 * one.high for one in found]
            axes.fill_between(at, *bounds, color=COLOURS[i], alpha=0.1, linewidth=0)
    if sweep.scale == "names":
        names = {str(name): title for name, title in VARIANTS.items()}
        axes.set_xticks(range(len(values)), [names.get(str(value), str(value)) for value in values])
        axes.set_xlim(-0.5, len(values) - 0.5)
    elif sweep.scale == "log":
        axes.set_xscale("log")
        axes.set_xticks([float(str(value)) for value in values], [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)
    axes.set(xlabel=f"{sweep.title} ({sweep.axis})", ylabel=f"{report.measures[0].title} × 100")
    figure.legend(loc="outside lower center", ncols=max(1, len(curves)), frameon=False)
    return figure


def check_target(path: str | Path) -> Path:
    """Where a figure goes, once it is sure that one can be drawn and written there."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"cannot tell the format of {str(target)!r}: end it in {', '.join(SUFFIXES)}")
    if not target.resolve().parent.is_dir():
        raise InputError(f"the folder {target.resolve().parent} does not exist: create it first")
    require("matplotlib.figure", extra="plots")
    return target


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, whichever the suffix says."""
    target = check_target(path)
    with replacing(target.resolve()) as partial:
        figure.savefig(partial, dpi=200, format=target.suffix[1:].lower())
    return target


def _series(report: Report, sweep: Sweep, key: Callable[[Row], float | None]) -> dict[str, dict[float, Row]]:
    """Rows by label and by what stands on the axis; all vectors are a line of their own."""
    wanted = set(sweep.settings)
    series: dict[str, dict[float, Row]] = {}
    for row in report.rows:
        at = key(row)
        if row.setting in wanted and row.setting.method != REFERENCE and at is not None:
            series.setdefault(row.setting.label, {})[at] = row
    if not series:
        raise InputError(f"{sweep.name} has no rows to draw: none of its settings ran")
    # The method whose interval is shown comes first, the others from the best down.
    name = str(report.measures[0])
    heights = {label: sum(_mean(row, name) for row in rows.values()) / len(rows) for label, rows in series.items()}
    leading = {label: all(row.setting.plain == LEADER for row in rows.values()) for label, rows in series.items()}
    return {label: series[label] for label in sorted(series, key=lambda one: (not leading[one], -heights[one]))}


def _mean(row: Row, name: str) -> float:
    return row.measures[name].mean


def _whole_line(report: Report, axes: Axes) -> None:
    if report.whole is not None:
        value = 100 * _mean(report.whole, str(report.measures[0]))
        axes.axhline(value, color=GREY, linestyle=":", linewidth=1.4, label=f"all vectors: {value:.1f}")


def _style(place: int) -> dict[str, Any]:
    """How the curve at this place of the legend looks: the second seven are dashed and hollow."""
    again = place >= len(COLOURS)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[(place + 3 * again) % len(MARKERS)],
        "markerfacecolor": "white" if again else None,
        "linestyle": "--" if again else "-",
        "markersize": 5.5,
        "linewidth": 1.6,
    }


def _figure(width: float, height: float, names: Sequence[str], *, most: int = len(COLOURS)) -> tuple[Figure, Axes]:
    if not names or len(names) > most:
        raise InputError(f"a figure takes 1 to {most} curves that can be told apart, got {len(names)}")
    figure = require("matplotlib.figure", extra="plots").Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def _budget_axis(axes: Axes, ratios: Sequence[float]) -> None:
    """A logarithmic axis, tight budgets to the right, with a tick at each ratio that has room for its label."""
    ticks: list[float] = []
    for ratio in ratios:
        if not ticks or ratio > 1.3 * ticks[-1]:
            ticks.append(ratio)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{ratio:.2g}" for ratio in ticks])
    axes.set_xticks([], minor=True)
    axes.invert_xaxis()


def _bytes_axis(axes: Axes, whole: float, ratios: Sequence[float]) -> None:
    """A logarithmic axis with a tick at the bytes of each ratio that has room for its label, and at the whole page."""
    ticks = [1.0]
    for ratio in reversed(ratios):
        if ratio < ticks[-1] / 1.7:
            ticks.append(ratio)
    axes.set_xscale("log")
    axes.set_xticks([ratio * whole for ratio in ticks], [f"{_bytes(ratio * whole)}\n{ratio:.3g}" for ratio in ticks])
    axes.set_xticks([], minor=True)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
