"""Make a small corpus of page vectors, compress it, and see what is left of its answers.

python examples/compress_sample.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import pagefacets as pf

DIM, PAGES, ROWS, QUERIES, TOKENS = 128, 200, 743, 120, 20
Rows = NDArray[np.float16]


def unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    normalised: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return normalised


def sample_corpus(seed: int = 0) -> tuple[list[pf.PageVectors], list[Rows], list[int]]:
    """Pages whose rows are mostly background that nobody asks for, and queries about what the rest says.

    A page draws a few concepts from a shared vocabulary; its background (margins, layout) is its own. A query names
    concepts of one page in most of its tokens, and nothing in particular in the others.
    """
    rng = np.random.default_rng(seed)
    concepts = unit(rng.standard_normal((600, DIM)))
    pages, about = [], []
    for i in range(PAGES):
        held = rng.choice(len(concepts), 12, replace=False)
        background = unit(rng.standard_normal((8, DIM)))
        told = int(0.25 * ROWS)
        where = np.concatenate([concepts[rng.choice(held, told)], background[rng.integers(0, 8, ROWS - told)]])
        rows = unit(where + 0.06 * rng.standard_normal((ROWS, DIM)))[rng.permutation(ROWS)]
        pages.append(pf.PageVectors(rows.astype(np.float16), id=f"page-{i:03}"))
        about.append(held)
    queries, answers = [], []
    for page in rng.integers(0, PAGES, QUERIES):
        named = concepts[rng.choice(about[page], 3, replace=False)][rng.integers(0, 3, TOKENS)]
        named[TOKENS * 3 // 4 :] = rng.standard_normal((TOKENS - TOKENS * 3 // 4, DIM)) / np.sqrt(DIM)
        queries.append(unit(named + 0.08 * rng.standard_normal((TOKENS, DIM))).astype(np.float16))
        answers.append(int(page))
    return pages, queries, answers


def found_first(queries: list[Rows], answers: list[int], held: list[pf.PageVectors] | list[pf.Facets]) -> float:
    """The share of queries whose page comes first."""
    scores = pf.maxsim(queries, pf.PackedPages.of(held))
    return float(np.mean(scores.argmax(1).numpy() == np.array(answers)))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    pages, queries, answers = sample_corpus()
    half = QUERIES // 2
    pool = pf.CalibrationPool.build(queries[:half], pages[:50], backbone="sample")
    asked, answers = queries[half:], answers[half:]

    table = Table(title=f"{PAGES} pages of {ROWS} vectors; {half} queries for the pool, {half} others asked")
    for heading in ("per page", "vectors", "kB", "C_err", "K_eff", "fidelity", "found first"):
        table.add_column(heading, justify="left" if heading == "per page" else "right")
    size = sum(page.nbytes for page in pages) / PAGES
    table.add_row("before", f"{ROWS}", f"{size / 1e3:.1f}", "0", "", "1", f"{found_first(asked, answers, pages):.0%}")
    for ratio in (0.1, 0.025, 0.01):
        for name, magic in {
            f"MAGIC, {ratio}": pf.Magic(ratio=ratio),
            "  without demand": pf.Magic(ratio=ratio, source="uniform"),
        }.items():
            facets = list(magic.compress_many(pages, pool, progress=console.is_terminal))
            result = pf.diagnose_many(pages, facets, asked)
            fidelity = result.fidelity
            table.add_row(
                name,
                f"{facets[0].k}",
                f"{sum(one.nbytes for one in facets) / PAGES / 1e3:.1f}",
                f"{result.covering_error:.4f}",
                f"{result.effective_facets:.1f}",
                "" if fidelity is None or fidelity.pearson is None else f"{fidelity.pearson:.3f}",
                f"{found_first(asked, answers, facets):.0%}",
            )
            if ratio == 0.025 and magic.needs_pool:
                pf.save_vectors(folder / "facets.safetensors", facets)
    pf.save_vectors(folder / "pages.safetensors", pages)
    pf.save_vectors(folder / "queries.safetensors", [pf.PageVectors(query) for query in asked])
    pool.save(folder / "pool.safetensors")
    console.print(table)
    console.print(
        "Fidelity is the correlation of compressed with full scores over pages. Try next:\n"
        f"  pagefacets info {folder}/facets.safetensors\n"
        f"  pagefacets compress {folder}/pages.safetensors --pool {folder}/pool.safetensors --keep 16 "
        f"-o {folder}/smaller.safetensors\n"
        f"  pagefacets diagnose {folder}/pages.safetensors {folder}/smaller.safetensors "
        f"--vectors {folder}/queries.safetensors",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
