"""The command-line reference in docs/cli.md: python -m pagefacets.cli.reference > docs/cli.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import typer

from pagefacets.cli.main import app

__all__ = ["reference"]


def reference() -> str:
    """Every verb with its arguments and options, as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield (
        "Tables and `--json` go to standard output, progress to standard error. The exit status is 0 when it worked, "
        "1 where verify finds damage, 2 for input that cannot be used (one sentence says why), 130 after Ctrl-C. "
        "Outputs are written aside and renamed when they are whole. This page is generated: "
        "`python -m pagefacets.cli.reference > docs/cli.md`."
    )
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="pagefacets")
    for name in sorted(group.list_commands(context)):  # type: ignore[attr-defined]
        verb = group.get_command(context, name)  # type: ignore[attr-defined]
        yield ""
        yield f"## pagefacets {name}"
        yield ""
        yield verb.help or ""
        yield ""
        yield "    " + (verb.epilog or "").removeprefix("Example: ")
        yield ""
        yield "| argument or option | what it does |"
        yield "|---|---|"
        for parameter in verb.params:
            if parameter.param_type_name == "argument":
                label = f"`{(parameter.name or '').upper()}`"
            else:
                label = ", ".join(f"`{flag}`" for flag in parameter.opts)
            yield f"| {label} | {getattr(parameter, 'help', None) or ''} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
