"""pagefacets compare: every compressor at every ratio on one's own vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.output import human_bytes, print_json
from pagefacets.errors import InputError

if TYPE_CHECKING:
    from pagefacets.evidence.comparison import Comparison
    from pagefacets.evidence.misalignment import Queries
    from pagefacets.vectors.files import VectorFile

__all__ = ["EXAMPLE", "command", "parse_ratios", "show"]

# Room for the widest table, whatever the terminal: in a pipe nothing may be cut off.
WIDTH = 120

EXAMPLE = (
    "Example: pagefacets compare pages.safetensors --pool pool.safetensors --vectors queries.npz --plot methods.png"
)


def command(
    vectors: Annotated[
        Path,
        typer.Argument(help="Page vectors: .safetensors, .npz, .arrow, .parquet, .lance, .pt, or a folder of .npy."),
    ],
    pool: Annotated[Path | None, typer.Option(help="Calibration pool, made by 'pagefacets calibrate'.")] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            "--vectors",
            help="Encoded queries, one 'page' per query; default: those inside VECTORS, else the pool's tokens.",
        ),
    ] = None,
    methods: Annotated[str, typer.Option(help="'all', or names separated by commas.")] = "all",
    ratios: Annotated[
        str, typer.Option(help="Shares of each page's vectors to keep, separated by commas.")
    ] = "0.5,0.25,0.1,0.05,0.025,0.01",
    sample: Annotated[int | None, typer.Option("--pages", help="Pages to draw (default: all).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the result here as JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw covering error against bytes per page here (.png, .svg, .pdf).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Compare compressors on VECTORS: what each keeps of demand and scores, in how many bytes, how fast."""
    shares = parse_ratios(ratios)
    if sample is not None and sample < 1:
        raise InputError(f"--pages must be at least 1, got {sample}: leave it out to take all")
    from pagefacets.evidence.compare import compare
    from pagefacets.evidence.plots import check_target, plot_comparison, save
    from pagefacets.vectors.files import open_vectors
    from pagefacets.vectors.pool import CalibrationPool

    if output is not None:
        _check_output(output)
    if plot is not None:
        check_target(plot)
    held_out = None if pool is None else CalibrationPool.load(pool)
    with open_vectors(vectors) as pages:
        found = compare(
            pages,
            held_out,
            _queries(pages, queries),
            methods=methods,
            ratios=shares,
            sample=sample,
            seed=seed,
            workers=workers,
            progress=not quiet,
        )
    if output is not None:
        _write(found, output)
    if plot is not None:
        save(plot_comparison(found), plot)
    if as_json:
        print_json(found.to_dict())
    else:
        show(f"{vectors}", found)


def parse_ratios(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--ratios takes numbers separated by commas, such as 0.1,0.05, got {text!r}") from error


def show(title: str, found: Comparison) -> None:
    """A block of rows for each ratio with the best of every column in bold, and below it what to know."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from pagefacets.evidence.comparison import HEADINGS

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("ratio", justify="right", style="dim", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[0] else "right", no_wrap=True)
    before = None
    for ratio, texts, best in found.table():
        if before is not None and ratio != before:
            table.add_row()
        marked = [Text(text, style="bold" if place in best else "") for place, text in enumerate(texts)]
        table.add_row("" if ratio == before else f"{ratio:g}", *marked)
        before = ratio
    console = Console(markup=False, highlight=False, width=WIDTH)
    console.print(title, style="italic", soft_wrap=True)
    console.print(table)
    console.print()
    asked = (
        f"{found.tokens:,} tokens" if found.queries is None else f"{found.queries:,} queries, {found.tokens:,} tokens"
    )
    facts = [
        f"means over {found.pages:,} pages of {found.vectors:,.1f} vectors, {human_bytes(found.nbytes)}; {asked}",
        f"ms: one core on one page at that ratio alone, over {found.timed_pages} pages",
        "loss: what a query token's best score falls by, rises counted as 0; change: the same with rises counted",
    ]
    for line in (*facts, *(f"note: {note}" for note in found.notes)):
        console.print(line, soft_wrap=True)
    for name, why in found.unable.items():
        console.print(f"{name} cannot run: {why}", soft_wrap=True)


def _queries(pages: VectorFile, queries: Path | None) -> Queries | None:
    from pagefacets.cli.queries import query_vectors

    return pages.queries() or None if queries is None else query_vectors(pages, queries)


def _check_output(path: Path) -> None:
    if path.suffix.lower() != ".json":
        raise InputError(f"the result is written as JSON, got {path}: name a file that ends in .json")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file that ends in .json")
    if not path.resolve().parent.is_dir():
        raise InputError(f"the folder {path.resolve().parent} does not exist: create it first")


def _write(found: Comparison, path: Path) -> None:
    import json

    from pagefacets.vectors.formats.aside import replacing

    with replacing(path.resolve()) as partial:
        text = json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False, indent=1)
        partial.write_text(f"{text}\n", encoding="utf-8")
