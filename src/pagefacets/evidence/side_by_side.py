"""A reproduction on disk: a page, Markdown, JSON and a Parquet table, and the reports of the benchmarks behind it."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagefacets.evidence.plots import save
from pagefacets.evidence.publish import figures, html_figure, html_page, html_table, publish, write_parquet
from pagefacets.evidence.reproduction import Reproduction
from pagefacets.evidence.tables import markdown
from pagefacets.vectors.formats.aside import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

__all__ = ["to_html", "to_markdown", "write"]


def write(found: Reproduction, folder: Path, *, command: str | None = None) -> list[Path]:
    """Write everything into `folder`, each file whole or not at all."""
    name = found.artifact.name
    written = []
    for part, report in found.reports.items():
        (folder / part).mkdir(exist_ok=True)
        written += publish(report, folder / part, command=command)
    for label, (_, figure) in found.drawn.items():
        written.append(save(figure, folder / f"{label}.png"))
    for suffix, text in (
        ("html", to_html(found, command=command)),
        ("md", to_markdown(found, command=command)),
        ("json", json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"),
    ):
        path = folder / f"{name}.{suffix}"
        with replacing(path.resolve()) as partial:
            partial.write_text(text, encoding="utf-8")
        written.append(path)
    write_parquet([entry.to_dict() for entry in found.entries], folder / f"{name}.parquet")
    return [*written, folder / f"{name}.parquet"]


def to_markdown(found: Reproduction, *, command: str | None = None) -> str:
    """The tables with our numbers above the paper's, as Markdown."""
    parts = [f"# {found.artifact.title}", f"The paper: {found.artifact.where}."]
    if command:
        parts.append(f"`{command}`")
    parts += [f"![{caption}]({name}.png)" for name, (caption, _) in found.drawn.items()]
    parts += [f"## {table.title}\n\n{markdown(table)}" for table in found.tables()]
    for heading, lines in _lists(found):
        parts.append(f"## {heading}\n\n" + "\n".join(f"- {line}" for line in lines))
    if found.reports:
        linked = [f"- [{report.sweeps[0].title}]({name}/report.md)" for name, report in found.reports.items()]
        parts.append("## Whole reports\n\n" + "\n".join(linked))
    return "\n\n".join(parts) + "\n"


def to_html(found: Reproduction, *, command: str | None = None) -> str:
    """The same as one page that refers to nothing but the reports beside it."""
    title = html.escape(found.artifact.title)
    parts = [f"<h1>{title}</h1>", f"<p class='soft'>The paper: {html.escape(found.artifact.where)}.</p>"]
    if command:
        parts.append(f"<p><code>{html.escape(command)}</code></p>")
    if shown := "".join(html_figure(caption, figure) for caption, figure in _drawn(found)):
        parts.append(f"<div class='figures'>{shown}</div>")
    parts += [html_table(table) for table in found.tables()]
    for heading, lines in _lists(found):
        listed = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        parts.append(f"<h2>{heading}</h2><ul>{listed}</ul>")
    if found.reports:
        linked = "".join(
            f"<li><a href='{html.escape(name, quote=True)}/report.html'>{html.escape(report.sweeps[0].title)}</a></li>"
            for name, report in found.reports.items()
        )
        parts.append(f"<h2>Whole reports</h2><ul>{linked}</ul>")
    return html_page(title, parts)


def _drawn(found: Reproduction) -> Iterator[tuple[str, Figure]]:
    yield from found.drawn.values()
    for report in found.reports.values():
        for name, drawn in figures(report).items():
            if not name.endswith("-front"):
                yield drawn


def _lists(found: Reproduction) -> list[tuple[str, list[str]]]:
    lists = [
        ("What was measured", list(found.notes)),
        ("What is known of the paper's numbers", found.remarks),
        ("What could not be run", found.reasons),
    ]
    return [(heading, lines) for heading, lines in lists if lines]
