"""pagefacets serve: a web page to search an index with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pagefacets.cli.output import print_json

__all__ = ["EXAMPLE", "command"]

EXAMPLE = "Example: pagefacets serve reports.pf"


def command(
    index: Annotated[Path, typer.Argument(help="The index's folder, as 'pagefacets index' made it.")],
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets every machine that reaches this one search.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8080,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A host name under which the server is reached, e.g. behind a proxy."),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where the server is as JSON.")] = False,
) -> None:
    """Search INDEX in a browser, and see on each page why it was found. Ctrl-C ends it."""
    from pagefacets.serve.server import serve

    def ready(url: str, pages: int) -> None:
        if as_json:
            print_json({"url": url, "pages": pages})
        else:
            sys.stdout.write(f"{index.name}: {pages:,} pages at {url} (Ctrl-C ends it)\n")
        sys.stdout.flush()
        if browser:
            import threading
            import webbrowser

            # Some browsers are waited for, and the page only comes once the server runs.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    serve(index, host=host, port=port, names=name or (), ready=ready)
