"""Which settings, retrievers and data sets make each table and figure, and which number stands where.

The paper counts its methods by pooling factors; here they run by ratio. Where it leaves a choice open, the recipe takes
the one that its printed sizes fit: MAGIC of Table 1 rounds rN to the nearest, that of every sweep up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

from pagefacets.evidence.compare import RATIOS
from pagefacets.evidence.retrievers import MAIN
from pagefacets.evidence.sweep import VARIANTS, Setting, Sweep, figure5, figure6, figure9, setting, table2

__all__ = ["RECIPES", "Cell", "Columns", "Panel"]

# The paper's name of each method.
METHODS = {
    "pool1d": "1D-Pooling",
    "pool2d": "2D-Pooling",
    "kmeans": "K-Means",
    "docpruner": "DocPruner",
    "voronoi": "Voronoi Pruning",
    "light-colpali": "Light-ColPali",
    "colchunk": "ColChunk",
    "prune-then-merge": "Prune-then-Merge",
    "magic": "MAGIC",
}
WHOLE = "all vectors"
# The axis of each panel of Figures 5, 6 and 9 as the paper names it.
AXES = {
    "figure5a": "(a) T_out",
    "figure5b": "(b) epsilon",
    "figure6a": "(a) selection",
    "figure6b": "(b) tokens",
    "figure9a": "(a) T_sk",
    "figure9b": "(b) tau",
    "figure9c": "(c) eta",
}

# One column for each data set and their average; their average alone; or English and all languages of each.
Columns = Literal["data sets", "average", "languages"]


class Cell(NamedTuple):
    """Where a setting's number stands; without a column, in one for each data set."""

    block: str
    row: str
    column: str | None = None


@final
@dataclass(frozen=True)
class Panel:
    """One retriever on one or more suites: the settings that run, and where each one's numbers stand."""

    model: str
    suites: tuple[str, ...]
    sweep: Sweep
    cells: Mapping[Setting, Cell]
    columns: Columns
    measures: tuple[str, ...] = ("ndcg@5",)

    @property
    def needs_pool(self) -> bool:
        return any(one.compressor.needs_pool for one in self.sweep.settings)


def _panel(
    name: str,
    title: str,
    model: str,
    suites: tuple[str, ...],
    cells: Mapping[Setting, Cell],
    columns: Columns = "data sets",
    measures: tuple[str, ...] = ("ndcg@5",),
) -> Panel:
    return Panel(model, suites, Sweep(name, title, tuple(cells)), dict(cells), columns, measures)


def _table1() -> list[Panel]:
    cells = {setting("identity", label=MAIN): Cell(WHOLE, MAIN)}
    for ratio in (0.1, 0.01):
        block = f"r = {ratio:g}"
        for method, name in METHODS.items():
            options: dict[str, Any] = {"rounding": "nearest"} if method == "magic" else {}
            cells[setting(method, ratio, label=name, **options)] = Cell(block, name)
        cells[setting("magic", ratio, label="MAGIC (rN rounded up)")] = Cell(block, "MAGIC (rN rounded up)")
    return [_panel("table1", "Post-hoc compressors", MAIN, ("vidore-v1",), cells, measures=("ndcg@5", "recall@5"))]


def _table2() -> list[Panel]:
    sweep = table2()
    cells = {one: Cell("average of six", one.label, f"{one.ratio:g}") for one in sweep.settings}
    return [Panel(MAIN, ("vidore-v1",), sweep, cells, "average")]


def _learned() -> list[Panel]:
    suites, block = ("vidore-v2", "vidore-v2-human"), "64 vectors a page"
    ours = {
        setting("identity", label=MAIN): Cell(WHOLE, MAIN),
        setting("magic", budget=64, label="MAGIC"): Cell(block, "MAGIC"),
    }
    panels = [_panel("learned-colqwen", "64 vectors a page", MAIN, suites, ours, "languages")]
    for name in ("AGC", "MetaEmbed"):
        cells = {setting("identity", label=name): Cell(block, name)}
        panels.append(_panel(f"learned-{name.lower()}", name, name, suites, cells, "languages"))
    return panels


def _single_vector() -> list[Panel]:
    blocks = {
        "1536 numbers a page": (12, {name: name for name in ("VLM2Vec", "VLM2Vec-V2", "UniME-V2")}),
        "about 2048 numbers a page": (
            16,
            {
                "VisRAG": "VisRAG",
                "Jina-v4-single": "Jina-v4",
                "Qwen3-VL-Embedding-2B": "Qwen3-VL-Embedding-2B",
                "Qwen3-VL-Embedding-8B": "Qwen3-VL-Embedding-8B",
            },
        ),
    }
    ours = {setting("identity", label=MAIN): Cell(WHOLE, MAIN)}
    others = []
    for block, (budget, models) in blocks.items():
        ours[setting("magic", budget=budget, label=f"MAGIC, {budget} facets")] = Cell(block, "MAGIC")
        for model, row in models.items():
            cells = {setting("identity", label=row): Cell(block, row)}
            others.append(_panel(f"single-{model.lower()}", row, model, ("vidore-v1",), cells))
    return [_panel("single-colqwen", "A few facets", MAIN, ("vidore-v1",), ours), *others]


def _budgets(panels: Mapping[str, tuple[str, str]]) -> list[Panel]:
    """Curves over ratios: every method of Table 1 but 2D-pooling, which has no such ratios."""
    made = []
    for block, (model, suite) in panels.items():
        cells = {setting("identity", label=WHOLE): Cell(block, WHOLE, "1")}
        for method, name in METHODS.items():
            if method != "pool2d":
                for ratio in RATIOS:
                    cells[setting(method, ratio, label=name)] = Cell(block, name, f"{ratio:g}")
        slug = f"budgets-{suite}-{model}".lower()
        made.append(_panel(slug, block.partition(") ")[2], model, (suite,), cells, "average"))
    return made


def _figure3() -> list[Panel]:
    return _budgets(
        {
            "(a) ViDoRe v1 - ColQwen2.5": (MAIN, "vidore-v1"),
            "(b) ViDoRe v1 - ColPali": ("ColPali", "vidore-v1"),
            "(c) ViDoRe v1 - Jina-v4": ("Jina-v4", "vidore-v1"),
            "(d) ViDoRe v2 - ColQwen2.5": (MAIN, "vidore-v2"),
        }
    )


def _figure10() -> list[Panel]:
    return _budgets(
        {
            "(a) ViDoRe v1 - ColNomic": ("ColNomic", "vidore-v1"),
            "(b) ViDoSeek - ColQwen2.5": (MAIN, "vidoseek"),
        }
    )


def _sweeps(sweeps: tuple[Sweep, ...]) -> list[Panel]:
    """One option at a time, at two ratios."""
    panels = []
    for sweep in sweeps:
        cells = {one: Cell(AXES[sweep.name], _value(one, sweep), f"r = {one.ratio:g}") for one in sweep.settings}
        panels.append(Panel(MAIN, ("vidore-v1",), sweep, cells, "average"))
    return panels


def _value(one: Setting, sweep: Sweep) -> str:
    value = one.option(sweep.axis)
    return VARIANTS.get(value, value) if isinstance(value, str) else f"{value:g}"  # type: ignore[call-overload]


# Tables and figures that are measured by answers; Table 3 and Figure 1 are measured otherwise.
RECIPES: dict[str, Callable[[], list[Panel]]] = {
    "table1": _table1,
    "table2": _table2,
    "learned": _learned,
    "single-vector": _single_vector,
    "figure3": _figure3,
    "figure5": lambda: _sweeps(figure5()),
    "figure6": lambda: _sweeps(figure6()),
    "figure9": lambda: _sweeps(figure9()),
    "figure10": _figure10,
}
