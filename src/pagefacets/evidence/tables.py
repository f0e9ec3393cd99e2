"""The tables of a benchmark's report, as text that Markdown, HTML and terminals each draw in their own way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from pagefacets.evidence.report import Report, Row
from pagefacets.evidence.significance import Interval
from pagefacets.evidence.sweep import Setting, Sweep

__all__ = ["Table", "by_budget", "by_group", "details", "leads", "markdown", "reasons"]


@final
@dataclass(frozen=True)
class Table:
    """Rows of texts under headings; `best` marks (row, column) pairs that no other row of the same kind betters."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    # Columns that hold words, not numbers.
    words: frozenset[int] = frozenset({0})
    # Rows before which another kind begins.
    breaks: frozenset[int] = frozenset()


def by_budget(report: Report, sweep: Sweep) -> Table | None:
    """The first measure of every label (down) at every ratio (across); None where no ratios vary."""
    rows = _rows(report, sweep)
    ratios = sorted({row.setting.ratio for row in rows if row.setting.ratio is not None}, reverse=True)
    if len(ratios) < 2 or sweep.axis != "ratio":
        return None
    labels = list(dict.fromkeys(row.setting.label for row in rows if row.setting.ratio is not None))
    name = str(report.measures[0])
    found = {(row.setting.label, row.setting.ratio): row.measures[name].mean for row in rows}
    texts = [(label, *(_hundred(found.get((label, ratio))) for ratio in ratios)) for label in labels]
    best = set()
    for column in range(1, len(ratios) + 1):
        best |= {(row, column) for row in _leading([text[column] for text in texts])}
    whole = report.whole
    beside = "" if whole is None else f" (all vectors: {_hundred(whole.measures[name].mean)})"
    title = f"{report.measures[0].title} × 100 by share kept{beside}"
    return Table(title, ("method", *(f"{ratio:g}" for ratio in ratios)), tuple(texts), frozenset(best))


def details(report: Report, sweep: Sweep) -> Table:
    """Everything about every row: measures with their intervals, what is kept, what it costs."""
    rows = sorted(_rows(report, sweep), key=lambda row: -(row.setting.nominal or 0))
    headings = (
        "share",
        "method",
        *(measure.title for measure in report.measures),
        "vectors/page",
        "bytes/page",
        "ms/page",
        "query ms",
    )
    texts = []
    best = set()
    breaks = set()
    start = 0
    for place, row in enumerate(rows):
        if place and rows[place - 1].setting.nominal != row.setting.nominal:
            breaks.add(place)
        texts.append(
            (
                "" if row.setting.nominal is None else f"{row.setting.nominal:g}",
                row.setting.label,
                *(_interval(row.measures[str(measure)]) for measure in report.measures),
                f"{row.vectors:,.1f}",
                f"{row.nbytes:,.0f}",
                f"{row.ms:,.2f}",
                f"{row.query_ms:,.2f}",
            )
        )
    for stop in [*sorted(breaks), len(rows)]:
        for column, measure in enumerate(report.measures, start=2):
            values = [_hundred(row.measures[str(measure)].mean) for row in rows[start:stop]]
            best |= {(start + i, column) for i in _leading(values)}
        start = stop
    title = "Every row: measures × 100 with their 95% intervals, what is kept, what it costs"
    return Table(title, headings, tuple(texts), frozenset(best), frozenset({1}), frozenset(breaks))


def leads(report: Report) -> Table | None:
    """MAGIC against every other row of its ratio; None where it did not run."""
    texts: list[tuple[str, ...]] = []
    breaks = set()
    before: float | None = None
    for (ours, theirs), found in sorted(report.leads.items(), key=lambda pair: -(pair[0][0].ratio or 0)):
        if before is not None and before != ours.ratio:
            breaks.add(len(texts))
        before = ours.ratio
        texts.append(
            (
                f"{ours.ratio:g}",
                theirs.label,
                f"{100 * found.difference:+z.1f}",
                f"[{100 * found.low:+z.1f}, {100 * found.high:+z.1f}]",
                "< 0.001" if found.p < 0.001 else f"{found.p:.3f}",
            )
        )
    if not texts:
        return None
    title = f"Lead of MAGIC in {report.measures[0].title} × 100, query by query"
    headings = ("share", "over", "lead", "95% interval", "p")
    return Table(title, headings, tuple(texts), words=frozenset({1}), breaks=frozenset(breaks))


def by_group(report: Report, sweep: Sweep) -> Table | None:
    """The first measure in every group that the average is over; None where there is but one."""
    if len(report.groups) < 2:
        return None
    rows = sorted(_rows(report, sweep), key=lambda row: -(row.setting.nominal or 0))
    name = str(report.measures[0])
    texts = [
        (
            "" if row.setting.nominal is None else f"{row.setting.nominal:g}",
            row.setting.label,
            *(_hundred(row.groups[group.name]) for group in report.groups),
            _hundred(row.measures[name].mean),
        )
        for row in rows
    ]
    breaks = {i for i in range(1, len(rows)) if rows[i - 1].setting.nominal != rows[i].setting.nominal}
    best = set()
    start = 0
    for stop in [*sorted(breaks), len(rows)]:
        for column in range(2, len(report.groups) + 3):
            best |= {(start + i, column) for i in _leading([text[column] for text in texts[start:stop]])}
        start = stop
    headings = ("share", "method", *(group.name for group in report.groups), "average")
    title = f"{report.measures[0].title} × 100 by data set"
    return Table(title, headings, tuple(texts), frozenset(best), frozenset({1}), frozenset(breaks))


def reasons(report: Report) -> list[str]:
    """One sentence for each label and reason that kept settings from running."""
    said: dict[tuple[str, str], list[Setting]] = {}
    for setting, why in report.unable.items():
        said.setdefault((setting.label, why), []).append(setting)
    ran = {row.setting.label for row in report.rows}
    return [
        f"{label}{_at(settings) if label in ran else ''} cannot run: {why}" for (label, why), settings in said.items()
    ]


def markdown(table: Table) -> str:
    """A table in Markdown."""
    lines = [
        "| " + " | ".join(table.headings) + " |",
        "|" + "|".join("---" if i in table.words else "---:" for i in range(len(table.headings))) + "|",
    ]
    for place, row in enumerate(table.rows):
        cells = (f"**{text}**" if (place, i) in table.best else text for i, text in enumerate(row))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _rows(report: Report, sweep: Sweep) -> list[Row]:
    wanted = set(sweep.settings)
    return [row for row in report.rows if row.setting in wanted]


def _leading(texts: Sequence[str]) -> list[int]:
    """Places of the largest number, where not all are equal."""
    numbers = [float(text) if text else float("-inf") for text in texts]
    if len(set(numbers)) < 2:
        return []
    return [i for i, number in enumerate(numbers) if number == max(numbers)]


def _at(settings: Iterable[Setting]) -> str:
    return f" at {', '.join(f'{setting.ratio:g}' for setting in settings if setting.ratio is not None)}"


def _hundred(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _interval(found: Interval) -> str:
    return f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
