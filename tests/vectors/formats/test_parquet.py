"""Parquet files as pyarrow writes them unless told otherwise: all pages in one row group."""

import copy
import pickle
import random
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pagefacets.errors import FileFormatError
from pagefacets.vectors.files import open_vectors

PAGES, ROWS, DIM = 1200, 64, 128
SLICE = 32


def write(path, rows, dim, values):
    inner = pa.FixedSizeListArray.from_arrays(pa.array(values), dim).cast(pa.list_(pa.float32()))
    count = len(inner) // rows
    outer = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * rows), inner)
    pq.write_table(pa.table({"id": [str(number) for number in range(count)], "embeddings": outer}), path)
    assert pq.ParquetFile(path).num_row_groups == 1
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A group too large to keep, though a dictionary makes its file small: page i is filled with i."""
    values = np.repeat(np.arange(PAGES, dtype=np.float32), ROWS * DIM)
    return write(tmp_path_factory.mktemp("large") / "x.parquet", ROWS, DIM, values)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    values = np.repeat(np.arange(PAGES, dtype=np.float32), 2 * 3)
    return write(tmp_path_factory.mktemp("small") / "x.parquet", 2, 3, values)


@pytest.fixture
def decoded(monkeypatch):
    """The rows pyarrow has decoded in batches so far, one entry per batch."""
    rows = []
    plain = pq.ParquetFile.iter_batches

    def counting(*arguments, **named):
        for batch in plain(*arguments, **named):
            rows.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    return rows


def numbers(pages):
    found = []
    for page in pages:
        assert page.vectors.min() == page.vectors.max()
        assert int(page.id) == int(page.vectors[0, 0])
        found.append(int(page.id))
    return found


@pytest.mark.parametrize("way", [lambda view: view, copy.copy, lambda view: pickle.loads(pickle.dumps(view))])
def test_slices_in_order_decode_every_page_once(way, large, decoded):
    file = open_vectors(large)
    for start in range(0, PAGES, SLICE):
        assert numbers(way(file[start : start + SLICE])) == list(range(start, min(start + SLICE, PAGES)))
    assert PAGES <= sum(decoded) <= PAGES + 2 * SLICE


def test_ascending_pages_and_every_other_slice_decode_every_page_once(large, decoded):
    file = open_vectors(large)
    for start in range(SLICE, PAGES, 2 * SLICE):
        assert numbers(file[start : start + SLICE]) == list(range(start, min(start + SLICE, PAGES)))
    assert sum(decoded) <= PAGES + SLICE
    decoded.clear()
    assert numbers(file[::7]) == list(range(0, PAGES, 7))
    assert numbers(file[number] for number in range(PAGES - 5, PAGES)) == list(range(PAGES - 5, PAGES))
    assert sum(decoded) <= PAGES + SLICE


def test_two_passes_side_by_side_decode_every_page_twice_at_most(large, decoded):
    file = open_vectors(large)
    half = PAGES // 2
    for start in range(0, half, SLICE):
        stop = min(start + SLICE, half)
        assert numbers(file[start:stop]) == list(range(start, stop))
        assert numbers(file[half + start : half + stop]) == list(range(half + start, half + stop))
    assert sum(decoded) <= 2 * PAGES


def test_a_slice_left_off_or_read_within_another_disturbs_nothing(large):
    file = open_vectors(large)
    left = iter(file[100:200])
    assert numbers([next(left)]) == [100]
    outer = []
    for page in file[90:140]:
        outer.append(int(page.id))
        assert numbers(file[outer[-1] + 3 : outer[-1] + 5]) == [outer[-1] + 3, outer[-1] + 4]
        assert numbers([file[outer[-1] // 2]]) == [outer[-1] // 2]
    assert outer == list(range(90, 140))
    assert numbers(left) == list(range(101, 200))


@pytest.mark.parametrize("which", ["small", "large"])
def test_any_order_and_any_thread_gets_the_page_asked_for(which, request):
    file = open_vectors(request.getfixturevalue(which))
    draw = random.Random(0)
    spans = [(start, min(PAGES, start + draw.randrange(1, 40))) for start in draw.sample(range(PAGES), 24)]

    def check(span):
        assert numbers(file[span[0] : span[1]]) == list(range(*span))
        assert numbers([file[span[1] - 1]]) == [span[1] - 1]

    for span in spans:
        check(span)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(check, spans))


def test_neither_a_page_nor_a_pass_holds_the_group(large, tmp_path):
    noise = np.random.default_rng(0).standard_normal(PAGES * ROWS * DIM, np.float32)
    noisy = write(tmp_path / "noisy.parquet", ROWS, DIM, noise)
    code = textwrap.dedent("""
        import sys
        import pyarrow as pa
        from pagefacets.vectors.files import open_vectors
        file = open_vectors(sys.argv[1])
        assert file[700].id == "700" and file[len(file) - 1].n == 64
        assert sum(page.n for page in file) == file.rows
        print(pa.default_memory_pool().max_memory())
    """)
    for path in (large, noisy):
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        assert int(done.stdout) < noise.nbytes / 2


def test_damage_within_a_group_is_told_every_time_and_spares_the_pages_before(tmp_path):
    path = write(tmp_path / "x.parquet", 64, 128, np.random.default_rng(0).standard_normal(64 * 128 * 200, np.float32))
    whole = bytearray(path.read_bytes())
    middle = len(whole) * 3 // 4
    whole[middle : middle + 1_000_000] = bytes(1_000_000)
    path.write_bytes(whole)
    file = open_vectors(path)
    for _ in range(2):
        assert [int(page.id) for page in file[:48]] == list(range(48))
        with pytest.raises(FileFormatError, match=r"x\.parquet is truncated or not a Parquet file"):
            list(file[48:])
