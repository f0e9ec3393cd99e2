"""The command `pagefacets`: its verbs, and what an error or Ctrl-C looks like."""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from importlib import import_module
from types import FrameType
from typing import Annotated

import typer

from pagefacets import __version__
from pagefacets.errors import PagefacetsError

__all__ = ["app", "main"]

INTERRUPTED = 130
# Loading PyTorch makes half a million objects that stay. Looking for garbage among them as often as Python does, and
# once more on leaving, would take a third of the time of a short command.
RARELY = 50_000
# Each is a module of this package, with its command and an example.
VERBS = (
    "add",
    "bench",
    "calibrate",
    "compact",
    "compare",
    "compress",
    "delete",
    "demo",
    "diagnose",
    "encode",
    "explain",
    "index",
    "info",
    "questions",
    "reproduce",
    "search",
    "serve",
    "verify",
)

app = typer.Typer(
    name="pagefacets",
    help="Shrink multi-vector page embeddings 10 to 100 times and keep their answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name in VERBS:
    verb = import_module(f"pagefacets.cli.{name}")
    app.command(name, epilog=verb.EXAMPLE)(verb.command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pagefacets {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Shrink multi-vector page embeddings 10 to 100 times and keep their answers."""


def main() -> None:
    """Exit status 0: it worked, 1: verify found damage, 2: input that cannot be used, 130: Ctrl-C, 143: SIGTERM."""
    signal.signal(signal.SIGTERM, _terminated)
    warnings.showwarning = _warned
    gc.set_threshold(RARELY)
    try:
        app()
    except PagefacetsError as error:
        sys.stderr.write(f"pagefacets: {error}\n")
        sys.exit(2)
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        sys.stderr.write(f"pagefacets: {place}{error.strerror or error}\n")
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            sys.stderr.write("pagefacets: stopped; nothing half-written was left behind\n")
        raise
    finally:
        gc.freeze()


def _warned(message: Warning | str, *_: object, **__: object) -> None:
    """A warning is one line, like an error."""
    sys.stderr.write(f"pagefacets: {message}\n")


def _terminated(number: int, _: FrameType | None) -> None:
    """SIGTERM leaves the way Ctrl-C does: temporary files are removed and workers ended on the way out."""
    sys.exit(128 + number)
