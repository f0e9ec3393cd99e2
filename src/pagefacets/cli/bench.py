"""pagefacets bench: every compressor at every ratio, judged by the answers that are left."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.compare import parse_ratios
from pagefacets.cli.output import print_json
from pagefacets.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pagefacets.evidence.report import Report
    from pagefacets.evidence.sweep import Sweep
    from pagefacets.evidence.tables import Table

__all__ = ["EXAMPLE", "command", "print_report_table"]

# Room for the widest table, whatever the terminal: in a pipe nothing may be cut off.
WIDTH = 140

EXAMPLE = "Example: pagefacets bench cache --ratios 0.1,0.05,0.025,0.01 -o results"


def command(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="Caches, or files of vectors with queries and qrels inside; with --model also datasets: folders, ids "
            "on the hub, mteb's task names, or vidore-v1, vidore-v2, vidore-v2-human, vidore-v3, vidoseek.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="RESULTS", help="Folder of the results; a run goes on where it stopped."
        ),
    ],
    methods: Annotated[str, typer.Option(help="'all', or names separated by commas.")] = "all",
    ratios: Annotated[
        str, typer.Option(help="Shares of each page's vectors to keep, separated by commas.")
    ] = "0.5,0.25,0.1,0.05,0.025,0.01",
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="table2, figure5, figure6 or figure9 instead of methods at ratios; repeatable."),
    ] = None,
    pool: Annotated[
        str,
        typer.Option(
            help="A calibration pool; a cache or file of vectors with queries to choose one from; 'split': from every "
            "second query, measured on the others, both ways; 'none'."
        ),
    ] = "split",
    measures: Annotated[
        str, typer.Option(help="ndcg@k, recall@k, mrr, mrr@k; the first one leads.")
    ] = "ndcg@5,recall@5,mrr",
    model: Annotated[
        str | None, typer.Option(help="Encoder for DATA that is not encoded; its caches go into RESULTS/caches.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of the encoder; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of pools and intervals.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Measure compressors on labelled DATA and write a report, tables and plots into RESULTS."""
    shares = parse_ratios(ratios)
    from pagefacets.evidence.benchmark import benchmark
    from pagefacets.evidence.cells import Store
    from pagefacets.evidence.measures import measures_of
    from pagefacets.evidence.publish import check_packages

    check_packages()
    measures_of(measures)
    listed = _sweeps(sweep or [], shares)
    Store(output)
    report = benchmark(
        _vectors(data, output, model, option or [], quiet=quiet),
        methods,
        shares,
        sweeps=listed or None,
        pool=None if pool == "none" else pool,
        measures=measures,
        results=output,
        seed=seed,
        workers=workers,
        progress=not quiet,
    )
    report.save(output, command=f"pagefacets {shlex.join(sys.argv[1:])}")
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report, output)


def _sweeps(names: Sequence[str], ratios: tuple[float, ...]) -> list[Sweep]:
    from pagefacets.evidence.sweep import figure5, figure6, figure9, table2

    recipes: dict[str, Callable[[], Sequence[Sweep]]] = {
        "table2": lambda: [table2(ratios)],
        "figure5": figure5,
        "figure6": figure6,
        "figure9": figure9,
    }
    for name in names:
        if name not in recipes:
            raise InputError(f"there is no sweep {name!r}: choose from {', '.join(recipes)}")
    return [one for name in dict.fromkeys(names) for one in recipes[name]()]


def _vectors(data: Sequence[str], output: Path, model: str | None, options: list[str], *, quiet: bool) -> list[Path]:
    """What is encoded as it is, and the caches of what had to be encoded first."""
    from pagefacets.evidence.labelled import holds_vectors
    from pagefacets.evidence.suites import hub_ids

    found: list[Path] = []
    for name in data:
        path = Path(name)
        if holds_vectors(path):
            found.append(path)
            continue
        sources = (name,) if path.exists() else hub_ids(name) or (name,)
        if not path.exists() and "/" not in sources[0]:
            raise InputError(f"there is no file or folder {name}, and no data set is called so: check the name")
        if path.is_file():
            raise InputError(f"{name} is neither a cache nor a file of vectors: encode it first, with its queries")
        if model is None:
            raise InputError(f"{name} is not encoded: name the encoder with --model, or run pagefacets encode first")
        found += [_encoded(source, output / "caches", model, options, quiet=quiet) for source in sources]
    return found


def _encoded(source: str, caches: Path, model: str, options: list[str], *, quiet: bool) -> Path:
    from pagefacets.cli.encode import encoder_of, encoder_options
    from pagefacets.vectors.cache import encode

    plain = source.replace("@", "/").rstrip("/")
    cache = caches / (Path(plain).resolve().name if Path(plain).exists() else plain.replace("/", "--"))
    caches.mkdir(parents=True, exist_ok=True)
    encode(source, encoder_of(model, encoder_options(options)), cache, progress=not quiet)
    return cache


def _show(report: Report, output: Path) -> None:
    from rich.console import Console

    from pagefacets.evidence.tables import by_budget, details, reasons

    console = Console(markup=False, highlight=False, width=WIDTH)
    for sweep in report.sweeps:
        console.print(sweep.title, style="bold", soft_wrap=True)
        for table in (by_budget(report, sweep), details(report, sweep)):
            if table is not None and table.rows:
                print_report_table(console, table)
    for line in report.method_notes:
        console.print(line, soft_wrap=True)
    for line in reasons(report):
        console.print(line, soft_wrap=True)
    console.print(f"the whole report: {output / 'report.html'}", soft_wrap=True)


def print_report_table(console: object, table: Table) -> None:
    """A report's table on a terminal."""
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    assert isinstance(console, Console)  # noqa: S101
    drawn = Drawn(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for i, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="left" if i in table.words else "right", no_wrap=True)
    for place, row in enumerate(table.rows):
        if place in table.breaks:
            drawn.add_row()
        drawn.add_row(*(Text(text, style="bold" if (place, i) in table.best else "") for i, text in enumerate(row)))
    console.print(table.title, style="italic", soft_wrap=True)
    console.print(drawn)
    console.print()
