"""pagefacets reproduce: a table or figure of the paper, our numbers beside its."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.compress import parse_options
from pagefacets.cli.output import print_json
from pagefacets.errors import InputError

if TYPE_CHECKING:
    from pagefacets.errors import PageError
    from pagefacets.evidence.reproduction import Reproduction

__all__ = ["EXAMPLE", "command"]

# Room for the widest table, whatever the terminal: in a pipe nothing may be cut off.
WIDTH = 140

EXAMPLE = "Example: pagefacets reproduce table1 --cache caches -o table1"


def command(
    name: Annotated[
        str,
        typer.Argument(
            help="table1, table2, table3, learned, single-vector, figure1, figure3, figure5, figure6, figure9 or "
            "figure10."
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA",
            help="Only these data sets, by the paper's names or a suite's (vidore-v1); NAME=PLACE for another id or "
            "a folder in the stead of one; a folder of folders called so; a data set of your own. Repeatable.",
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Only these models, by the paper's names; NAME=PLACE for another id or a folder in the stead of one; "
            "a place alone stands in for ColQwen2.5. Repeatable.",
        ),
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Encoded vectors and finished cells; a run goes on where it stopped.")
    ] = Path("reproduction"),
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="RESULTS", help="Folder for the page, Markdown, JSON, Parquet and plots."
        ),
    ] = None,
    training: Annotated[
        str, typer.Option(help="The data set that calibration pools are drawn from, an id or a folder.")
    ] = "vidore/colpali_train_set",
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[MODEL:]NAME=VALUE", help="An option of all encoders or of one; repeatable."),
    ] = None,
    pages: Annotated[int | None, typer.Option(help="Pages that table3 (2,000) and figure1 (1,000) draw.")] = None,
    queries: Annotated[int, typer.Option(help="Distinct queries that table3 times.")] = 1000,
    replays: Annotated[int, typer.Option(help="How often table3 repeats what it times.")] = 5,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the encoder's choice by default.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that compress (default: one per core).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of samples, pools and intervals.")] = 0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Report pages that cannot be read and leave them out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run a table or figure of the paper; print our numbers beside its, and what could not be run and why."""
    options = _options(option or [])
    from pagefacets.evidence.paper import artifact
    from pagefacets.evidence.reproduce import reproduce

    artifact(name)
    if output is not None:
        from pagefacets.evidence.publish import check_packages

        check_packages()
        _check_output(output)
    found = reproduce(
        name,
        data or (),
        models or (),
        cache,
        training=training,
        options=options,
        pages=pages,
        queries=queries,
        replays=replays,
        device=device,
        workers=workers,
        keep_going=keep_going,
        skipped=_report,
        seed=seed,
        progress=not quiet,
        say=None if quiet else _say,
    )
    if output is not None:
        found.save(output, command=f"pagefacets {shlex.join(sys.argv[1:])}")
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found, output)


def _options(assignments: list[str]) -> dict[str, dict[str, object]]:
    """Options by the name of their model, and of all models under ""."""
    grouped: dict[str, list[str]] = {}
    for assignment in assignments:
        model, colon, rest = assignment.partition(":")
        mine = bool(colon) and "=" not in model
        grouped.setdefault(model if mine else "", []).append(rest if mine else assignment)
    return {model: parse_options(mine) for model, mine in grouped.items()}


def _check_output(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder for the results")
    if not folder.resolve().parent.is_dir():
        raise InputError(f"the folder {folder.resolve().parent} does not exist: create it first")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _report(error: PageError) -> None:
    sys.stderr.write(f"pagefacets: left out {error}\n")


def _show(found: Reproduction, output: Path | None) -> None:
    from rich.console import Console

    from pagefacets.cli.bench import print_report_table

    console = Console(markup=False, highlight=False, width=WIDTH)
    console.print(f"{found.artifact.title}; the paper: {found.artifact.where}", soft_wrap=True)
    console.print()
    for table in found.tables():
        print_report_table(console, table)
    for line in (*found.notes, *(f"note: {remark}" for remark in found.remarks)):
        console.print(line, soft_wrap=True)
    for line in found.reasons:
        console.print(f"could not be run: {line}", soft_wrap=True)
    if output is not None:
        console.print(f"the whole of it: {output / f'{found.artifact.name}.html'}", soft_wrap=True)
