"""Large files: written without being held in memory, read page by page, by this process and by others."""

import gc
import json
import subprocess
import sys
import textwrap
import time

import loky
import pytest
import torch

from pagefacets.data import PageVectors
from pagefacets.vectors.files import open_vectors, save_vectors
from pagefacets.vectors.formats.stored import map_file


def page(number):
    generator = torch.Generator().manual_seed(number)
    return PageVectors(torch.randn(743, 128, generator=generator).half(), boxes=torch.zeros(743, 4), id=str(number))


WRITER = textwrap.dedent("""
    import json, resource, sys
    import torch
    from pagefacets.data import PageVectors
    from pagefacets.vectors.files import save_vectors

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    def pages(count):
        block = torch.randn(743, 128).half()
        for number in range(count):
            yield PageVectors(block + number % 1000, boxes=torch.zeros(743, 4), id=str(number))

    name = sys.argv[1]
    save_vectors("small-" + name, pages(100))
    before = peak()
    count = save_vectors(name, pages(3200))
    print(json.dumps({"count": count, "growth": peak() - before}))
""")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.arrow", "x.parquet", "x.lance"])
def test_600_megabytes_are_written_in_bounded_memory(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITER, name], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    print(f"{name}: peak memory grew by {report['growth']} MiB")
    assert report["count"] == 3200
    assert report["growth"] < 150
    file = open_vectors(tmp_path / name)
    assert file.nbytes == 3200 * 743 * 128 * 2
    for number in (0, 1, 1999, 3199):
        assert abs(float(file[number].vectors.float().mean()) - number % 1000) < 0.5


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.pt", "x.arrow", "x.parquet", "x.lance", "folder"])
def test_a_random_page_is_read_without_the_others(name, tmp_path):
    count = 120
    save_vectors(tmp_path / name, (page(number) for number in range(count)))
    file = open_vectors(tmp_path / name)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    assert [int(file[number].id) for number in order] == order
    gc.disable()
    start = time.perf_counter()
    for number in order:
        file[number]
    took = (time.perf_counter() - start) / count
    gc.enable()
    print(f"{name}: {took * 1e6:.0f} microseconds to a random page, annotations checked")
    assert took < 0.1


def total(view):
    return len(view), [item.id for item in view], sum(int(item.vectors.view(torch.int16).long().sum()) for item in view)


@pytest.mark.parametrize("name", ["x.safetensors", "x.parquet", "x.lance"])
def test_worker_processes_get_slices(name, tmp_path):
    save_vectors(tmp_path / name, (page(number) for number in range(24)))
    file = open_vectors(tmp_path / name)
    with loky.ProcessPoolExecutor(max_workers=2) as pool:
        done = list(pool.map(total, [file[start : start + 6] for start in range(0, 24, 6)]))
    assert done == [total(file[start : start + 6]) for start in range(0, 24, 6)]


def test_a_file_larger_than_memory_can_be_mapped(tmp_path):
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(1 << 40)
    mapped = map_file(tmp_path / "huge")
    assert mapped.shape == (1 << 40,)
    mapped[-1] = 3
    assert int(mapped[-1]) == 3
    assert int(map_file(tmp_path / "huge")[-1]) == 0


def test_many_pages_open_quickly(tmp_path):
    save_vectors(tmp_path / "x.safetensors", (PageVectors(torch.ones(1, 2), id=str(n)) for n in range(20_000)))
    start = time.perf_counter()
    file = open_vectors(tmp_path / "x.safetensors")
    assert file[19_999].id == "19999"
    assert time.perf_counter() - start < 1


@pytest.mark.slow
def test_a_pass_that_releases_holds_little_of_the_file(tmp_path):
    """Reading 300 MB leaves them in this process's resident memory, unless what was read is given back."""
    page = PageVectors(torch.randn(1000, 128))
    save_vectors(tmp_path / "large.safetensors", (page for _ in range(600)))
    script = """
import sys, torch
from pagefacets.vectors.files import open_vectors
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
for releasing in (False, True):
    with open_vectors(sys.argv[1]) as pages:
        before, sums = resident(), 0.0
        for i, page in enumerate(pages):
            sums += float(page.vectors.sum())
            if releasing and i % 32 == 31:
                pages.release()
        print(resident() - before, sums)
        del page
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "large.safetensors"], capture_output=True, text=True, check=True
    )
    (held, total), (released, same) = (map(float, line.split()) for line in done.stdout.splitlines())
    assert held > 200
    assert released < 50
    assert same == total
