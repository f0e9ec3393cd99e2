"""pagefacets compress: a file of page vectors into a file of facets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.output import human_bytes, not_over_inputs, print_json, print_rows
from pagefacets.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pagefacets.data import Facets

__all__ = ["EXAMPLE", "Totals", "command", "parse_options", "recipe"]

# From this many bytes of vectors on, more processes are started before it is known how many pages there are.
WORTH_STARTING = 1 << 26

EXAMPLE = "Example: pagefacets compress pages.safetensors --pool pool.safetensors --ratio 0.05 -o facets.safetensors"


def command(
    vectors: Annotated[
        Path,
        typer.Argument(help="Page vectors: .safetensors, .npz, .arrow, .parquet, .lance, .pt, or a folder of .npy."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the facets go; the suffix chooses the format.")],
    pool: Annotated[Path | None, typer.Option(help="Calibration pool, made by 'pagefacets calibrate'.")] = None,
    method: Annotated[str, typer.Option(help="Compressor; docs/choosing.md lists all.")] = "magic",
    ratio: Annotated[float | None, typer.Option(help="Share of each page's vectors to keep (default 0.05).")] = None,
    keep: Annotated[int | None, typer.Option(help="Vectors to keep per page, instead of a share.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An option of the method, e.g. tau=0.03; repeatable."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    expect: Annotated[str | None, typer.Option(help="Refuse a pool that was not made for this model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Compress every page of VECTORS to a few facets."""
    if ratio is not None and keep is not None:
        raise InputError("pass --ratio or --keep, not both")
    if expect is not None and pool is None:
        raise InputError("--expect checks a pool: pass it with --pool")
    not_over_inputs(output, vectors, pool)
    from pagefacets.parallel import available_cores, standing_by

    options = parse_options(option or [])
    processes = workers or (available_cores() if _large(vectors) else 1)
    with standing_by(processes if device == "cpu" else 1):
        from pagefacets.facets.registry import compressor, takes_ratio
        from pagefacets.vectors.files import open_vectors, save_vectors
        from pagefacets.vectors.pool import CalibrationPool

        if keep is not None:
            options["budget"] = keep
        elif ratio is not None:
            options["ratio"] = ratio
        elif takes_ratio(method, options):
            options["ratio"] = 0.05
        chosen = compressor(method, **options)
        tokens = None if pool is None else CalibrationPool.load(pool, expect=expect)
        with open_vectors(vectors) as pages:
            if pages.kind == "facets":
                raise InputError(f"{pages.name} already holds facets: compress the page vectors they were made from")
            before, n_pages, n_vectors = pages.nbytes, len(pages), pages.rows
            started = time.perf_counter()
            facets = chosen.compress_many(pages, tokens, workers=workers, device=device, progress=not quiet)
            totals = Totals()
            save_vectors(output, totals.count(facets), metadata={"recipe": recipe(chosen.config(), tokens)})
            seconds = time.perf_counter() - started
    result = {
        "pages": n_pages,
        "method": method,
        "vectors_before": n_vectors,
        "vectors_after": totals.vectors,
        "vectors_per_page": totals.vectors / n_pages,
        "bytes_before": before,
        "bytes_after": totals.nbytes,
        "times_smaller": before / totals.nbytes,
        "ms_per_page": 1e3 * seconds / n_pages,
        "output": str(output),
    }
    if as_json:
        print_json(result)
        return
    print_rows(
        f"{output}",
        [
            ("pages", f"{n_pages:,}"),
            ("vectors per page", f"{n_vectors / n_pages:.1f} -> {totals.vectors / n_pages:.1f}"),
            (
                "bytes",
                f"{human_bytes(before)} -> {human_bytes(totals.nbytes)} ({before / totals.nbytes:.1f} times smaller)",
            ),
            ("time", f"{seconds:.1f} s, {1e3 * seconds / n_pages:.2f} ms per page"),
        ],
    )


def _large(vectors: Path) -> bool:
    """Whether it is sure to be work for several processes, before PyTorch is there to open the file."""
    files = vectors.rglob("*") if vectors.is_dir() else [vectors]
    return sum(file.stat().st_size for file in files if file.is_file()) >= WORTH_STARTING


class Totals:
    """Counts facets while they stream past."""

    def __init__(self) -> None:
        self.vectors = 0
        self.nbytes = 0

    def count(self, facets: Iterable[Facets]) -> Iterator[Facets]:
        for one in facets:
            self.vectors += one.k
            self.nbytes += one.nbytes
            yield one


def parse_options(assignments: list[str]) -> dict[str, object]:
    """NAME=VALUE pairs, with numbers and true/false read as such."""
    options: dict[str, object] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes NAME=VALUE, got {assignment!r}")
        if name in ("name", "ratio", "budget"):
            raise InputError(f"--set takes options of the method, got {name}: use --method, --ratio or --keep")
        options[name] = _value(text)
    return options


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def recipe(config: dict[str, object], pool: object) -> str:
    """The choices behind a file of facets, as JSON."""
    import json

    from pagefacets import __version__

    known = {
        name: value for name in ("sha256", "backbone", "source") if (value := getattr(pool, name, None)) is not None
    }
    return json.dumps({"pagefacets": __version__, "compressor": config, "pool": known})
