"""What a benchmark runs: settings, each a method with its options, its ratio and its pool; and the paper's lists.

    table2()                 every marginal and the readout switched off in turn (Table 2)
    figure5(), figure9()     one option of MAGIC at a time (Figures 5 and 9)
    figure6()                how the calibration pool is chosen, and how large it is (Figure 6)
    budgets(methods, ratios) methods at ratios (Table 1, Figures 3 and 10)

Each gives one or more `Sweep`s; `benchmark(data, sweeps=...)` runs them. The paper prints neither the values on the
axes of Figures 5, 6b and 9 nor the two ratios of 5 and 9: those here are chosen within the ranges that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final, get_args

from pagefacets.errors import InputError
from pagefacets.evidence.compare import RATIOS, method_names
from pagefacets.evidence.comparison import REFERENCE
from pagefacets.facets.compressor import Compressor, whole_number
from pagefacets.facets.registry import compressor
from pagefacets.vectors.calibrate import Variant

__all__ = ["VARIANTS", "PoolSpec", "Setting", "Sweep", "budgets", "figure5", "figure6", "figure9", "setting", "table2"]

# What the paper calls the ways to choose a pool.
VARIANTS: Mapping[Variant, str] = {
    "magic": "MAGIC",
    "no-visual": "w/o VA",
    "no-diversity": "w/o Div",
    "random": "Random",
}


@final
@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """How a calibration pool is chosen from queries, as `CalibrationPool.build` has it."""

    variant: Variant = "magic"
    size: int = 1000
    dictionary: int = 200

    def __post_init__(self) -> None:
        if self.variant not in get_args(Variant):
            raise InputError(f"variant must be one of {', '.join(get_args(Variant))}, got {self.variant!r}")
        whole_number("size", self.size, 1)
        whole_number("dictionary", self.dictionary, 1)


@final
@dataclass(frozen=True)
class Setting:
    """One cell of a table: a configured method, the share it keeps, and the pool it reads.

    `ratio` is None where the method's options fix its budget, or where it has none. `label` is what tables call it.
    """

    method: str
    ratio: float | None
    options: tuple[tuple[str, Any], ...] = ()
    pool: PoolSpec = PoolSpec()
    label: str = ""

    def __post_init__(self) -> None:
        made = self.compressor
        if not made.needs_pool and self.pool != PoolSpec():
            raise InputError(f"{self.method} reads no calibration pool, so a setting of it cannot choose one")
        if not self.label:
            object.__setattr__(self, "label", _label(self))

    @property
    def compressor(self) -> Compressor:
        """The method, configured."""
        budget = {} if self.ratio is None else {"ratio": self.ratio}
        return compressor(self.method, **budget, **dict(self.options))

    @property
    def nominal(self) -> float | None:
        """The share asked for: 1 for the method that keeps everything, None where options fix the budget."""
        return 1.0 if self.method == REFERENCE else self.ratio

    @property
    def plain(self) -> str | None:
        """The method's name, where neither its options nor its pool are other than by default."""
        return None if self.options or self.pool != PoolSpec() else self.method

    def option(self, name: str) -> object:
        """An option's value, of the method or else of its pool, set or by default."""
        source = self.pool if name in {field.name for field in fields(PoolSpec)} else self.compressor
        return getattr(source, name)

    def to_dict(self) -> dict[str, object]:
        """As JSON takes it."""
        return {
            "method": self.method,
            "ratio": self.ratio,
            "options": dict(self.options),
            "pool": {field.name: getattr(self.pool, field.name) for field in fields(PoolSpec)},
            "label": self.label,
        }


@final
@dataclass(frozen=True)
class Sweep:
    """Settings that belong in one table or figure; `axis` is the option that varies in it, "ratio" for budgets."""

    name: str
    title: str
    settings: tuple[Setting, ...]
    axis: str = "ratio"
    scale: Literal["linear", "log", "names"] = "log"

    def __post_init__(self) -> None:
        if not self.settings:
            raise InputError(f"{self.name} has no settings: pass at least one method and one ratio")


def setting(
    method: str, ratio: float | None = None, *, pool: PoolSpec | None = None, label: str = "", **options: object
) -> Setting:
    """setting("magic", 0.05, source="uniform"); an option equal to its default is left out, so equal ones are equal."""
    budget = {} if ratio is None else {"ratio": ratio}
    made = compressor(method, **budget, **options)
    defaults = {field.name: field.default for field in fields(made)}
    own = tuple(sorted((name, value) for name, value in options.items() if defaults[name] != value))
    return Setting(method, ratio, own, pool or PoolSpec(), label)


def budgets(
    methods: Sequence[str] | str = "all", ratios: Sequence[float] = RATIOS, *, name: str = "budgets", title: str = ""
) -> Sweep:
    """Every method at every ratio, and all vectors once."""
    shares = sorted(set(ratios), reverse=True) if isinstance(ratios, Iterable) else []
    if not shares:
        raise InputError(f"ratios must be a list of shares, got {ratios!r}: pass some, such as {RATIOS}")
    listed = []
    for method in method_names(methods):
        listed += [setting(method)] if method == REFERENCE else [setting(method, ratio) for ratio in shares]
    return Sweep(name, title or "Methods at every budget", tuple(listed))


def table2(ratios: Sequence[float] = RATIOS) -> Sweep:
    """Table 2: MAGIC, then without its source marginal, its target marginal, its readout."""
    rows: dict[str, dict[str, Any]] = {
        "MAGIC": {},
        "w/o source": {"source": "uniform"},
        "w/o target": {"target": "free"},
        "w/o Lloyd": {"readout": "transport"},
    }
    settings = [setting("magic", ratio, label=label, **options) for label, options in rows.items() for ratio in ratios]
    return Sweep("table2", "Marginals and readout", tuple(settings))


def figure5(ratios: Sequence[float] = (0.1, 0.05)) -> tuple[Sweep, ...]:
    """Figure 5: outer iterations, and the temperature of the plan."""
    return (
        _option("figure5a", "Outer iterations", "outer", (1, 2, 3, 5, 8, 10), ratios, "linear"),
        _option("figure5b", "Temperature of the plan", "epsilon", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5), ratios),
    )


def figure6(
    ratios: Sequence[float] = (0.1, 0.05), sizes: Sequence[int] = (50, 100, 200, 500, 1000, 2000)
) -> tuple[Sweep, ...]:
    """Figure 6: the variants of the calibration pool, and its size."""
    variants = [
        setting("magic", ratio, pool=PoolSpec(variant=variant), label=f"{label}, r = {ratio:g}")
        for ratio in ratios
        for variant, label in VARIANTS.items()
    ]
    counted = [
        setting("magic", ratio, pool=PoolSpec(size=size), label=f"{size} tokens, r = {ratio:g}")
        for ratio in ratios
        for size in sizes
    ]
    return (
        Sweep("figure6a", "How the pool is chosen", tuple(variants), "variant", "names"),
        Sweep("figure6b", "Calibration tokens", tuple(counted), "size"),
    )


def figure9(ratios: Sequence[float] = (0.1, 0.05)) -> tuple[Sweep, ...]:
    """Figure 9: Sinkhorn iterations, the temperature of demand, and the barycentre's step."""
    return (
        _option("figure9a", "Sinkhorn iterations", "inner", (1, 2, 3, 5, 8, 10), ratios, "linear"),
        _option("figure9b", "Temperature of demand", "tau", (0.005, 0.01, 0.02, 0.05, 0.1, 0.2), ratios),
        _option("figure9c", "Barycentre's step", "eta", (0.1, 0.3, 0.5, 0.7, 0.9, 0.982, 1.0), ratios, "linear"),
    )


def _option(
    name: str,
    title: str,
    axis: str,
    values: Sequence[float],
    ratios: Sequence[float],
    scale: Literal["linear", "log"] = "log",
) -> Sweep:
    chosen: list[tuple[float, float, dict[str, Any]]] = [(r, value, {axis: value}) for r in ratios for value in values]
    settings = [
        replace(setting("magic", ratio, **options), label=f"{axis} = {value:g}, r = {ratio:g}")
        for ratio, value, options in chosen
    ]
    return Sweep(name, title, tuple(settings), axis, scale)


def _label(one: Setting) -> str:
    chosen = [f"{name}={value}" for name, value in one.options]
    chosen += [
        f"{field.name}={getattr(one.pool, field.name)}"
        for field in fields(PoolSpec)
        if getattr(one.pool, field.name) != field.default
    ]
    return one.method + (f" ({', '.join(chosen)})" if chosen else "")
