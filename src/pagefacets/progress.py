"""A progress bar on standard error with rate and time left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["track"]

Item = TypeVar("Item")


def track(items: Iterable[Item], total: int | None, doing: str, *, unit: str) -> Iterator[Item]:
    """The items as they come, counted on standard error; nothing is shown where there are none."""
    if total == 0:
        yield from items
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    ]
    if total is not None:
        columns += [TextColumn("left"), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(doing, total=total, rate="")
        for item in items:
            yield item
            speed = bar.tasks[0].speed
            bar.update(task, advance=1, rate="" if speed is None else f"{_rounded(speed)} {unit}/s")


def _rounded(speed: float) -> str:
    """Two digits of what is slow: a large model may take seconds for a page."""
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"
