"""How every verb prints: a table for people or JSON for programs, both on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pagefacets.errors import InputError

__all__ = ["human_bytes", "not_over_inputs", "print_json", "print_rows", "print_table"]


def print_json(result: object) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n")


def print_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A title and two columns."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    Console(markup=False, highlight=False).print(table)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A title, and columns under their names."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for label in header:
        table.add_column(label, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


def human_bytes(count: float) -> str:
    """Decimal units, as storage is sold."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def not_over_inputs(output: Path, *inputs: Path | None) -> None:
    """Refuse to write over what is being read."""
    for one in inputs:
        if one is not None and one.resolve() == output.resolve():
            raise InputError(f"{output} is read and would be written over: name another output")
