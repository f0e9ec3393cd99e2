"""The figures: how concentrated demand is, what each method makes of its budget, and all methods side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pagefacets.errors import InputError
from pagefacets.evidence.comparison import REFERENCE, Cell, Comparison
from pagefacets.evidence.diagnostics import TOP_SHARE, Diagnostics, PageDiagnostics
from pagefacets.evidence.misalignment import Lorenz
from pagefacets.extras import require
from pagefacets.vectors.formats.aside import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any

__all__ = ["check_target", "plot_budget", "plot_comparison", "plot_demand", "save"]

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
        i = order.index(method)
        again = i >= len(COLOURS)
        axes.plot(
            [cell.nbytes for cell in methods[method]],
            [cell.covering_error for cell in methods[method]],
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[(i + 3 * again) % len(MARKERS)],
            markerfacecolor="white" if again else None,
            linestyle="--" if again else "-",
            markersize=5.5,
            linewidth=1.6,
            label=method,
        )
    axes.axvline(found.nbytes, color=GREY, linestyle=":", linewidth=1.4, label="the whole page")
    _bytes_axis(axes, found.nbytes, sorted({cell.ratio for cell in found.cells if cell.method in methods}))
    axes.set(xlabel="bytes per page, with the share of the page they are", ylabel="covering error $C_{\\mathrm{err}}$")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", frameon=False)
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
