"""pagefacets index: documents into a folder that is searched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.compress import parse_options
from pagefacets.cli.output import human_bytes, print_json, print_rows
from pagefacets.errors import InputError, PageError

if TYPE_CHECKING:
    from pagefacets.pipeline import Index
    from pagefacets.recipe import Recipe

__all__ = ["EXAMPLE", "change_facts", "change_rows", "command", "report"]

EXAMPLE = "Example: pagefacets index reports/ -o reports.pf"

_TOLD = ("documents", "vectors", "facets", "bytes", "bytes_on_disk", "method", "encoder")
_OWN_FLAGS = {
    "encoder.name": "--model",
    "encoder.device": "--device",
    "encoder.workers": "--workers",
    "compressor.name": "--method",
    "compressor.ratio": "--ratio",
    "compressor.budget": "--keep",
    "dtype": "--dtype",
    "full": "--full",
}


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="A PDF or an image, a folder of them, or a dataset; or a cache or a file of vectors, which is not "
            "encoded again."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="INDEX", help="The index's folder; an existing one is updated.")
    ],
    recipe: Annotated[
        Path | None, typer.Option(help="A TOML file with the choices below; options given here come first.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="'words', which needs no network (the default), or a checkpoint's id or folder.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Compressor (default: ward, or magic where there is a pool).")
    ] = None,
    ratio: Annotated[float | None, typer.Option(help="Share of each page's vectors to keep (default 0.25).")] = None,
    keep: Annotated[int | None, typer.Option(help="Vectors to keep per page, instead of a share.")] = None,
    pool: Annotated[Path | None, typer.Option(help="Calibration pool, made by 'pagefacets calibrate'.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="How facets are stored: float16 (default), float32, int8 or binary.")
    ] = None,
    full: Annotated[
        bool | None,
        typer.Option("--full/--facets-only", help="Keep the full vectors, too: for rescoring and side by side."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="TABLE.NAME=VALUE", help="Another choice, e.g. compressor.tau=0.03, encoder.ocr=never."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the encoder's choice by default.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes, for encoders that use several.")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Report pages that cannot be read and leave them out; status 0.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Index the pages of SOURCE; again after a change: only new and changed pages are encoded."""
    if ratio is not None and keep is not None:
        raise InputError("pass --ratio or --keep, not both")
    from pagefacets.index.reader import Reader, is_index
    from pagefacets.pipeline import Index
    from pagefacets.recipe import Recipe
    from pagefacets.vectors.pool import CalibrationPool

    held = Recipe.of(Reader(output.absolute()).manifest) if is_index(output) else None
    base = Recipe.load(recipe) if recipe is not None else held or Recipe.default(pooled=pool is not None)
    chosen = _chosen(base, model, method, ratio, keep, dtype, full, option or [])
    running = {name: value for name, value in (("device", device), ("workers", workers)) if value is not None}
    named = model is not None or chosen.encoder != base.encoder or bool(running)
    index = Index.build(
        output,
        source,
        chosen.made_encoder(**running) if named else None,
        pool=None if pool is None else CalibrationPool.load(pool),
        recipe=chosen,
        keep_going=keep_going,
        skipped=report,
        progress=not quiet,
    )
    facts = {**change_facts(index), "output": str(output)}
    if as_json:
        print_json(facts)
    else:
        print_rows(str(output), change_rows(index))


def _chosen(
    base: Recipe,
    model: str | None,
    method: str | None,
    ratio: float | None,
    keep: int | None,
    dtype: str | None,
    full: bool | None,
    assignments: list[str],
) -> Recipe:
    """The recipe with what was typed in the place of what it says."""
    from pagefacets.facets.registry import takes_ratio
    from pagefacets.recipe import RATIO, Recipe

    tables = {"encoder": dict(base.encoder), "compressor": dict(base.compressor)}
    if model is not None and model != tables["encoder"]["name"]:
        tables["encoder"] = {"name": model}
    if method is not None and method != tables["compressor"]["name"]:
        tables["compressor"] = {"name": method}
    if ratio is not None or keep is not None:
        tables["compressor"] |= {"ratio": ratio, "budget": keep}
    for assignment in assignments:
        place, _, _ = assignment.partition("=")
        if place in _OWN_FLAGS:
            raise InputError(f"--set takes what has no option of its own, got {place}: use {_OWN_FLAGS[place]}")
        table, _, rest = assignment.partition(".")
        if table not in tables or not rest:
            raise InputError(f"--set takes encoder.NAME=VALUE or compressor.NAME=VALUE, got {assignment!r}")
        tables[table] |= parse_options([rest])
    wanted = dict(tables["compressor"])
    name = str(wanted.pop("name"))
    if wanted.get("ratio") is None and wanted.get("budget") is None and takes_ratio(name, wanted):
        tables["compressor"]["ratio"] = RATIO
    return Recipe(
        encoder=tables["encoder"],
        compressor=tables["compressor"],
        dtype=base.dtype if dtype is None else dtype,
        full=base.full if full is None else full,
    )


def report(error: PageError) -> None:
    """Tell of a page that is left out."""
    sys.stderr.write(f"pagefacets: left out {error}\n")


def change_facts(index: Index) -> dict[str, object]:
    """What the last change did, and what there is now."""
    from pagefacets.cli.info import index_facts

    change = index.change
    assert change is not None  # noqa: S101
    facts = index_facts(index)
    return {
        "pages": len(index),
        "added": change.added,
        "replaced": change.replaced,
        "kept": change.kept,
        "removed": change.removed,
        "skipped": [{"place": error.place, "why": error.why} for error in change.skipped],
        **{name: facts[name] for name in _TOLD},
        "seconds": change.seconds,
    }


def change_rows(index: Index) -> list[tuple[str, str]]:
    """The same for people."""
    from pagefacets.index.quantize import codec

    facts = change_facts(index)
    change = index.change
    assert change is not None  # noqa: S101
    made = [
        f"{count:,} {what}"
        for count, what in (
            (change.added, "added"),
            (change.replaced, "replaced"),
            (change.kept, "there before"),
            (change.removed, "removed"),
        )
        if count
    ]
    done, pages = change.added + change.replaced, max(1, len(index))
    vectors, facets = sum(index.reader.listing.n), sum(index.reader.listing.k)
    lines = [
        ("pages", f"{len(index):,} of {facts['documents']:,} documents: {', '.join(made)}"),
        ("vectors per page", f"{vectors / pages:.1f} -> {facets / pages:.1f} by {index.manifest.compressor['name']}"),
        ("bytes of facets", human_bytes(facets * codec(index.manifest.dtype, index.manifest.dim).stride)),
    ]
    if change.skipped:
        lines.append(("left out", f"{len(change.skipped):,} pages or documents"))
    rate = f", {done / change.seconds:.2f} pages/s" if done else ""
    return [*lines, ("encoder", index.manifest.encoder.id), ("time", f"{change.seconds:.1f} s{rate}")]
