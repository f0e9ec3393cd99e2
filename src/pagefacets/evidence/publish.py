"""A benchmark's report on disk: one HTML page that needs nothing else, Markdown, Parquet tables and the plots."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagefacets.errors import InputError
from pagefacets.evidence.cells import Measured
from pagefacets.evidence.plots import COLOURS, plot_choice, plot_front, plot_sweep, save
from pagefacets.evidence.report import Report
from pagefacets.evidence.tables import Table, by_budget, by_group, details, leads, markdown, reasons
from pagefacets.extras import require
from pagefacets.vectors.formats.aside import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

__all__ = [
    "check_packages",
    "figures",
    "html_figure",
    "html_page",
    "html_table",
    "publish",
    "to_html",
    "to_markdown",
    "write_parquet",
]

_MOST_CURVES = 2 * len(COLOURS)

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --line: #d9dee4; --paper: #fff; --best: #0b5c2e;
  --wash: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #39414a; --paper: #15181c;
  --best: #7fd8a2; --wash: #1d2126; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 78rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
p, li { max-width: 60rem; } .soft { color: var(--soft); } ul { padding-left: 1.2rem; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; }
th { background: var(--wash); font-weight: 600; border-bottom: 1px solid var(--line); }
td.word, th.word { text-align: left; } tr.next td { border-top: 1px solid var(--line); }
td.best { font-weight: 700; color: var(--best); } tbody tr:hover { background: var(--wash); }
figure { margin: 1rem 0; } figure img { display: block; max-width: 100%; background: #fff; border-radius: 6px;
  border: 1px solid var(--line); padding: .5rem; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; } .figures figure { flex: 1 1 24rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .35rem; }
""".strip()


def check_packages() -> None:
    """Refuse before the work begins if the report could not be written."""
    require("pytrec_eval", extra="bench")
    require("matplotlib.figure", extra="bench")


def publish(report: Report, folder: Path, *, command: str | None = None) -> list[Path]:
    """Write report.html, report.md, report.json, cells.parquet, queries.parquet and plots/; each appears whole."""
    if not folder.is_dir():
        raise InputError(f"the folder {folder} does not exist: create it first")
    (folder / "plots").mkdir(exist_ok=True)
    drawn = figures(report)
    written = [save(figure, folder / "plots" / f"{name}.png") for name, (_, figure) in drawn.items()]
    written += [save(figure, folder / "plots" / f"{name}.svg") for name, (_, figure) in drawn.items()]
    for name, text in (
        ("report.html", to_html(report, drawn, command=command)),
        ("report.md", to_markdown(report, drawn, command=command)),
        ("report.json", json.dumps(report.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"),
    ):
        with replacing((folder / name).resolve()) as partial:
            partial.write_text(text, encoding="utf-8")
        written.append(folder / name)
    for name, rows in (("cells.parquet", list(_cells(report))), ("queries.parquet", list(_queries(report)))):
        write_parquet(rows, folder / name)
        written.append(folder / name)
    return written


def figures(report: Report) -> dict[str, tuple[str, Figure]]:
    """The figures of a report by name, each with a caption."""
    found: dict[str, tuple[str, Figure]] = {}
    measure = report.measures[0].title
    for sweep in report.sweeps:
        rows = [row for row in report.rows if row.setting in set(sweep.settings) and row.setting.ratio is not None]
        if not rows:
            continue
        if sweep.axis != "ratio":
            found[sweep.name] = (f"{sweep.title}: {measure} with 95% intervals.", plot_choice(report, sweep))
        elif len({row.setting.label for row in rows}) <= _MOST_CURVES:
            line = "" if report.whole is None else "; the dotted line is what all vectors reach"
            found[f"{sweep.name}-sweep"] = (f"{measure} as the budget shrinks{line}.", plot_sweep(report, sweep))
            found[f"{sweep.name}-front"] = (
                f"{measure} against the bytes that are really kept of a page; along the grey line nothing is both "
                f"smaller and better.",
                plot_front(report, sweep),
            )
    return found


def to_markdown(
    report: Report, drawn: Mapping[str, tuple[str, Figure]] | None = None, *, command: str | None = None
) -> str:
    """The report as Markdown, with links to the figures that `publish` puts beside it."""
    parts = [f"# {_title(report)}"]
    if command:
        parts.append(f"`{command}`")
    parts.append("\n".join(f"- {note}" for note in _notes(report)))
    for sweep in report.sweeps:
        parts.append(f"## {sweep.title}")
        for name, (caption, _) in (drawn or {}).items():
            if name == sweep.name or name.rpartition("-")[0] == sweep.name:
                parts.append(f"![{caption}](plots/{name}.png)")
        shown = [by_budget(report, sweep), details(report, sweep), by_group(report, sweep)]
        parts += [f"### {table.title}\n\n{markdown(table)}" for table in shown if table is not None and table.rows]
    lead = leads(report)
    if lead is not None:
        parts.append(f"## {lead.title}\n\n{_LEAD}\n\n{markdown(lead)}")
    if said := reasons(report):
        parts.append("## What did not run\n\n" + "\n".join(f"- {one}" for one in said))
    return "\n\n".join(parts) + "\n"


def to_html(
    report: Report, drawn: Mapping[str, tuple[str, Figure]] | None = None, *, command: str | None = None
) -> str:
    """The report as one page that refers to nothing outside itself."""
    title = html.escape(_title(report))
    parts = [f"<h1>{title}</h1>"]
    if command:
        parts.append(f"<p><code>{html.escape(command)}</code></p>")
    parts.append("<ul class='soft'>" + "".join(f"<li>{html.escape(note)}</li>" for note in _notes(report)) + "</ul>")
    for sweep in report.sweeps:
        parts.append(f"<h2>{html.escape(sweep.title)}</h2>")
        shown = [
            html_figure(caption, figure)
            for name, (caption, figure) in (drawn or {}).items()
            if name == sweep.name or name.rpartition("-")[0] == sweep.name
        ]
        if shown:
            parts.append(f"<div class='figures'>{''.join(shown)}</div>")
        tables = [by_budget(report, sweep), details(report, sweep), by_group(report, sweep)]
        parts += [html_table(table) for table in tables if table is not None and table.rows]
    lead = leads(report)
    if lead is not None:
        parts.append(f"<h2>Is the lead real?</h2><p class='soft'>{html.escape(_LEAD)}</p>{html_table(lead)}")
    if said := reasons(report):
        listed = "".join(f"<li>{html.escape(one)}</li>" for one in said)
        parts.append(f"<h2>What did not run</h2><ul>{listed}</ul>")
    return html_page(title, parts)


def html_page(title: str, parts: Iterable[str]) -> str:
    """A whole page of parts in HTML, under a title that is escaped already."""
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><title>{title}</title>"
        f"<style>\n{_STYLE}\n</style></head>\n<body>\n{body}\n</body></html>\n"
    )


_LEAD = (
    "MAGIC minus the other method, query by query. Intervals are paired bootstrap intervals; p is the two-sided "
    "p-value of a paired randomisation test (signs of the differences flipped at random), not corrected for the number "
    "of rows."
)


def _title(report: Report) -> str:
    names = ", ".join(one.name for one in report.data)
    return f"Benchmark on {names}"


def _notes(report: Report) -> list[str]:
    return [*report.method_notes, f"times: {'; '.join(report.machines)}"]


def html_table(table: Table) -> str:
    """A table in HTML, under its title."""
    word = [" class='word'" if i in table.words else "" for i in range(len(table.headings))]
    head = "".join(f"<th{word[i]}>{html.escape(text)}</th>" for i, text in enumerate(table.headings))
    rows = []
    for place, row in enumerate(table.rows):
        cells = []
        for i, text in enumerate(row):
            marks = ["word"] * (i in table.words) + ["best"] * ((place, i) in table.best)
            cells.append(f"<td{_class(marks)}>{html.escape(text)}</td>")
        rows.append(f"<tr{_class(['next'] * (place in table.breaks))}>{''.join(cells)}</tr>")
    return (
        f"<h3>{html.escape(table.title)}</h3><div class='wide'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _class(marks: list[str]) -> str:
    return f" class='{' '.join(marks)}'" if marks else ""


def html_figure(caption: str, figure: Figure) -> str:
    """A figure inside the page, with its caption."""
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    # As an image of its own, so that the ids inside several drawings do not meet.
    data = base64.b64encode(drawn.getvalue()).decode("ascii")
    said = html.escape(caption, quote=True)
    return f"<figure><img alt='{said}' src='data:image/svg+xml;base64,{data}'><figcaption>{said}</figcaption></figure>"


def _cells(report: Report) -> Iterator[dict[str, object]]:
    for (name, setting), cell in report.cells.items():
        about = {"data": name, **_columns(setting.to_dict())}
        if not isinstance(cell, Measured):
            yield {**about, "unable": cell.why}
            continue
        for measure, values in cell.values.items():
            yield {
                **about,
                "measure": measure,
                "mean": float(values.mean()),
                "queries": len(values),
                "vectors_per_page": cell.vectors,
                "bytes_per_page": cell.nbytes,
                "ms_per_page": cell.ms,
                "query_ms": report.latencies[name, setting],
                "machine": cell.machine,
                "unable": None,
            }


def _queries(report: Report) -> Iterator[dict[str, object]]:
    for one in report.data:
        for setting in report.running:
            cell = report.cells[one.name, setting]
            if not isinstance(cell, Measured):
                continue
            for place, i in enumerate(one.asked):
                yield {
                    "data": one.name,
                    **_columns(setting.to_dict()),
                    "query": one.query_ids[i],
                    "language": one.languages[i],
                    **{measure: float(values[place]) for measure, values in cell.values.items()},
                }


def _columns(setting: Mapping[str, object]) -> dict[str, object]:
    """A setting as plain columns: what is no single value, as JSON."""
    return {key: json.dumps(value) if isinstance(value, dict) else value for key, value in setting.items()}


def write_parquet(rows: list[dict[str, object]], path: Path) -> None:
    """Rows as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    with replacing(path.resolve()) as partial:
        pq.write_table(table, partial)
