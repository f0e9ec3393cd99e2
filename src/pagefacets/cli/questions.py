"""pagefacets questions: have a vision-language model ask about pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.output import print_json, print_rows
from pagefacets.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pagefacets.data import Page
    from pagefacets.errors import PageError
    from pagefacets.evidence.asker import Asker

__all__ = ["EXAMPLE", "command"]

EXAMPLE = "Example: pagefacets questions reports/ -o queries.jsonl --endpoint http://localhost:8000/v1 --keep-going"


def command(
    source: Annotated[
        str, typer.Argument(help="A PDF or an image, a folder of them, or a dataset: its folder, or its id on the hub.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where the questions go (.jsonl); an existing one is gone on with.")
    ],
    model: Annotated[
        str, typer.Option(help="A hub id or a folder; with --endpoint, the name the endpoint knows it by.")
    ] = "Qwen/Qwen3-VL-8B-Instruct",
    count: Annotated[int, typer.Option(help="Questions per page.")] = 5,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask an OpenAI-compatible server, which is sent the page images."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key-from", metavar="VARIABLE", help="The environment variable that holds the endpoint's key."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests under way at the endpoint at once (default 4).")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds a request may take (default 120).")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ... (default: a GPU where there is one).")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16 (default: bfloat16 on a GPU, else float32).")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Pages that go through the local model at once (default 4).")
    ] = None,
    longest: Annotated[int, typer.Option(help="Pixels on the longer side of a page's image, at most.")] = 1600,
    attempts: Annotated[int, typer.Option(help="Times a page is asked about until its answer is of use.")] = 3,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A field of the request or the generation config; repeatable."
        ),
    ] = None,
    sample: Annotated[int | None, typer.Option("--pages", help="Pages to draw (default: all).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Report pages without questions and leave them out; status 0.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Have a vision-language model ask questions about each page of SOURCE."""
    if sample is not None and sample < 1:
        raise InputError(f"--pages must be at least 1, got {sample}: leave it out to take all")
    shared = {"model": model, "longest": longest, "settings": _settings(option or [])}
    remote = {"key_variable": key, "concurrency": concurrency, "timeout": timeout}
    local = {"device": device, "dtype": dtype, "batch": batch}
    asker = _asker(endpoint, shared, remote, local)
    from pagefacets.evidence.questions import ask_questions
    from pagefacets.pages.source import open_pages

    failed: list[PageError] = []

    def report(error: PageError) -> None:
        failed.append(error)
        sys.stderr.write(f"pagefacets: left out {error}\n")

    skipped = report if keep_going else None
    pages = _drawn(open_pages(source, skipped=skipped), sample, seed)
    made = ask_questions(pages, asker, output, count=count, attempts=attempts, skipped=skipped, progress=not quiet)
    if as_json:
        print_json({**made.to_dict(), "skipped": [{"place": error.place, "why": error.why} for error in failed]})
        return
    rows = [
        ("model", made.model),
        ("pages", f"{made.pages:,}, {made.asked:,} of them asked about now"),
        ("questions", f"{made.questions:,}"),
    ]
    print_rows(str(output), [*rows, ("left out", f"{len(failed):,} pages or documents")] if failed else rows)


def _asker(
    endpoint: str | None, shared: Mapping[str, object], remote: Mapping[str, object], local: Mapping[str, object]
) -> Asker:
    flags = {"key_variable": "key-from"}
    for given, needed, where in ((remote, True, "needs --endpoint"), (local, False, "is of a local model")):
        for name, value in given.items():
            if value is not None and (endpoint is not None) != needed:
                raise InputError(f"--{flags.get(name, name)} {where}: {'add' if needed else 'leave out'} --endpoint")
    chosen = {name: value for name, value in (remote if endpoint else local).items() if value is not None}
    if endpoint is not None:
        from pagefacets.evidence.endpoint import Endpoint

        return Endpoint(endpoint, **shared, **chosen)  # type: ignore[arg-type]  # checked by the class
    from pagefacets.evidence.local import LocalModel

    return LocalModel(**shared, **chosen)  # type: ignore[arg-type]


def _settings(assignments: list[str]) -> dict[str, object]:
    """NAME=VALUE pairs, the value as JSON where it is JSON, and none for null."""
    import json

    settings: dict[str, object] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes NAME=VALUE, got {assignment!r}")
        try:
            settings[name] = None if text == "none" else json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


def _drawn(pages: list[Page], sample: int | None, seed: int) -> list[Page]:
    """A sample of the pages in their own order, the same for the same seed."""
    if sample is None or sample >= len(pages):
        return pages
    import random

    return [pages[place] for place in sorted(random.Random(seed).sample(range(len(pages)), sample))]  # noqa: S311
