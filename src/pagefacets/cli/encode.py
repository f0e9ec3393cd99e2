"""pagefacets encode: documents or a dataset into a cache of vectors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagefacets.cli.compress import parse_options
from pagefacets.cli.output import human_bytes, print_json, print_rows
from pagefacets.errors import InputError, PageError

if TYPE_CHECKING:
    from pagefacets.vectors.cache import Cache, Run
    from pagefacets.vectors.encoder import Encoder

__all__ = ["EXAMPLE", "command", "encoder_of", "encoder_options"]

EXAMPLE = "Example: pagefacets encode reports/ --model words -o cache"

_OWN_FLAGS = {"name": "--model", "device": "--device", "workers": "--workers"}


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="A PDF or an image, a folder of them, or a dataset: a folder with pages, queries and qrels, or its "
            "id on the hub."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="CACHE", help="The cache's folder; an existing one is updated.")
    ],
    model: Annotated[
        str, typer.Option(help="'words', which needs no network, or a checkpoint's id or folder.")
    ] = "words",
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An option of the encoder, e.g. ocr=never; repeatable."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help='Queries to encode: one per line, or a .jsonl file with a "query" in each object.'),
    ] = None,
    language: Annotated[str | None, typer.Option(help="Only the queries in this language.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the encoder's choice by default.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes, for encoders that use several.")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Report pages that cannot be read and leave them out; status 0.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Encode the pages of SOURCE, and its queries, into CACHE; only what is not there yet."""
    options = encoder_options(option or [])
    options |= {name: value for name, value in (("device", device), ("workers", workers)) if value is not None}
    from pagefacets.vectors.cache import encode

    cache = encode(
        source,
        encoder_of(model, options),
        output,
        queries=queries,
        language=language,
        keep_going=keep_going,
        skipped=_report,
        progress=not quiet,
    )
    run = cache.run
    assert run is not None  # noqa: S101
    if as_json:
        print_json(_result(cache, run, output))
    else:
        print_rows(str(output), _rows(cache, run))


def encoder_options(assignments: list[str]) -> dict[str, object]:
    """The options of an encoder that --set names, but not those that have a flag of their own."""
    for assignment in assignments:
        name = assignment.partition("=")[0]
        if name in _OWN_FLAGS:
            raise InputError(f"--set takes options of the encoder, got {name}: use {_OWN_FLAGS[name]}")
    return parse_options(assignments)


def encoder_of(model: str, options: dict[str, object]) -> Encoder:
    """The encoder that --model names."""
    from pagefacets.vectors.encoder import encoder

    try:
        return encoder(model, **options)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None or unknown[1] not in options:
            raise
        taken = ", ".join(_taken(error)) or "no options"
        raise InputError(f"{model} has no option {unknown[1]!r}: it takes {taken}") from error


def _taken(error: TypeError) -> list[str]:
    """The options of the encoder whose call failed."""
    import inspect

    from pagefacets.vectors.encoder import Encoder

    makers = [one for one in _subclasses(Encoder) if str(error).startswith(f"{one.__name__}.__init__()")]
    names = [name for maker in makers for name in inspect.signature(maker).parameters]
    return [name for name in names if name not in _OWN_FLAGS]


def _subclasses(parent: Any) -> list[Any]:
    return [found for child in parent.__subclasses__() for found in (child, *_subclasses(child))]


def _report(error: PageError) -> None:
    sys.stderr.write(f"pagefacets: left out {error}\n")


def _result(cache: Cache, run: Run, output: Path) -> dict[str, object]:
    return {
        "pages": len(cache),
        "encoded": run.encoded,
        "kept": run.kept,
        "shared": run.shared,
        "dropped": run.dropped,
        "damaged": run.damaged,
        "skipped": [{"place": error.place, "why": error.why} for error in run.skipped],
        "vectors": cache.pages.rows,
        "bytes": cache.pages.nbytes,
        "dimension": cache.pages.dim,
        "queries": len(cache.query_ids),
        "queries_encoded": run.queries_encoded,
        "encoder": cache.manifest.encoder.id,
        "seconds": run.seconds,
        "output": str(output),
    }


def _rows(cache: Cache, run: Run) -> list[tuple[str, str]]:
    pages = len(cache)
    made = [
        f"{count:,} {what}"
        for count, what in ((run.encoded, "encoded"), (run.kept, "there before"), (run.shared, "by other processes"))
        if count
    ]
    rows = [("pages", f"{pages:,}: {', '.join(made)}")]
    if run.kept == pages and not run.queries_encoded:
        rows = [("pages", f"{pages:,}, all encoded before: there was nothing to do")]
    rows.append(("vectors per page", f"{cache.pages.rows / pages:.1f} of dimension {cache.pages.dim}"))
    rows.append(("bytes", human_bytes(cache.pages.nbytes)))
    if cache.query_ids:
        done = f": {run.queries_encoded:,} encoded" if run.queries_encoded else ", all encoded before"
        rows.append(("queries", f"{len(cache.query_ids):,}{done}"))
    for label, count, what in (
        ("left out", len(run.skipped), "pages or documents that cannot be read"),
        ("dropped", run.dropped, "pages that the source has no more"),
        ("damaged", run.damaged, "shards, made again"),
    ):
        if count:
            rows.append((label, f"{count:,} {what}"))
    rate = f", {run.encoded / run.seconds:.2f} pages/s" if run.encoded else ""
    return [*rows, ("encoder", cache.manifest.encoder.id), ("time", f"{run.seconds:.1f} s{rate}")]
