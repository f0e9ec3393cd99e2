"""Files of page vectors: what goes in comes out, in every format and by every way of asking."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefacets.data import Facets, PageVectors
from pagefacets.errors import FileFormatError, InputError
from pagefacets.vectors.files import VectorFile, open_vectors, save_vectors

COMPLETE = ["x.safetensors", "x.npz", "x.pt", "x.arrow", "x.feather", "x.parquet", "x.lance"]
ALL = [*COMPLETE, "folder"]
MAPPED = ["x.safetensors", "x.npz", "x.pt", "x.arrow", "folder"]

FIELDS = ("vectors", "image_mask", "importance", "boxes", "assignment", "demand")
VALUES = ("grid", "id", "offset", "method")

ids = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def listing(folder):
    return sorted(entry.name for entry in folder.iterdir())


def same(left, right, fields=FIELDS + VALUES):
    for name in fields:
        a, b = getattr(left, name, None), getattr(right, name, None)
        if isinstance(a, torch.Tensor):
            assert isinstance(b, torch.Tensor), name
            assert a.dtype == b.dtype, name
            assert a.shape == b.shape, name
            assert torch.equal(a.nan_to_num(nan=-7.0), b.nan_to_num(nan=-7.0)), name
        else:
            assert a == b, name


@st.composite
def pages(draw, dtype, dim):
    n = draw(st.integers(1, 9))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(n, generator=generator) < 0.7 if draw(st.booleans()) else None
    weights = torch.rand(n, generator=generator) if draw(st.booleans()) else None
    if weights is not None and n > 1:
        weights[draw(st.integers(0, n - 1))] = float("nan")
    patches = n if mask is None else int(mask.sum())
    return partial(
        PageVectors,
        torch.randn(n, dim, generator=generator).to(dtype),
        grid=(patches, 1) if patches and draw(st.booleans()) else None,
        image_mask=mask,
        importance=weights,
        boxes=torch.rand(n, 4, generator=generator) if draw(st.booleans()) else None,
        id=draw(ids),
    )


@st.composite
def facets(draw, dtype, dim):
    n = draw(st.integers(1, 9))
    k = draw(st.integers(1, n))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    return partial(
        Facets,
        vectors=torch.randn(k, dim, generator=generator).to(dtype),
        assignment=torch.randint(-1, k, (n,), generator=generator),
        demand=torch.rand(n, generator=generator) if draw(st.booleans()) else None,
        offset=draw(st.none() | st.floats(-1, 1)),
        id=draw(ids),
        method=draw(st.none() | st.sampled_from(["magic", "k-means", "Ward ü"])),
    )


def files_of(item):
    return st.tuples(
        st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]), st.integers(1, 5)
    ).flatmap(lambda shape: st.lists(item(*shape), min_size=1, max_size=6))


def some_pages(count=7, dim=4, dtype=torch.float16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        PageVectors(torch.randn(3 + number % 4, dim, generator=generator).to(dtype), id=f"page {number}")
        for number in range(count)
    ]


def some_facets(count=3):
    return [
        Facets(torch.randn(2, 4), torch.tensor([0, 1, -1, 1]), torch.tensor([0.1, 0.2, 0.3, 0.4]), None, 0.25, "a", "m")
        for _ in range(count)
    ]


@pytest.mark.parametrize("name", COMPLETE)
@settings(max_examples=25)
@given(drawn=files_of(pages), metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_pages_come_back_as_they_were(name, drawn, metadata):
    written = [make() for make in drawn]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        assert save_vectors(path, iter(written), metadata=metadata) == len(written)
        file = open_vectors(path)
        assert len(file) == len(written)
        assert file.kind == "pages"
        assert file.metadata == metadata
        assert file.dtype == written[0].vectors.dtype
        assert file.dim == written[0].dim
        assert file.counts.tolist() == [page.n for page in written]
        assert file.rows == sum(page.n for page in written)
        assert file.nbytes == sum(page.nbytes for page in written)
        for number, (page, read) in enumerate(zip(written, file, strict=True)):
            same(page, read)
            same(page, file[number])


@pytest.mark.parametrize("name", COMPLETE)
@settings(max_examples=25)
@given(drawn=files_of(facets))
def test_facets_come_back_as_they_were(name, drawn):
    written = [make() for make in drawn]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        save_vectors(path, written)
        file = open_vectors(path)
        assert file.kind == "facets"
        for number, (item, read) in enumerate(zip(written, file.iter_facets(), strict=True)):
            same(item, read)
            same(item, file.facets(number))
            assert torch.equal(file[number].vectors, item.vectors)
            assert file[number].id == item.id


@settings(max_examples=25)
@given(drawn=files_of(pages))
def test_a_folder_keeps_the_vectors_and_the_ids(drawn):
    written = [make() for make in drawn]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pages"
        save_vectors(path, written, metadata={"model": "m"})
        file = open_vectors(path)
        assert file.metadata == {"model": "m"}
        assert file.counts.tolist() == [page.n for page in written]
        for page, read in zip(written, file, strict=True):
            same(page, read, ("vectors", "id"))
            assert read.grid is None


@pytest.mark.parametrize("name", ALL)
def test_random_access_slices_and_iteration_agree(name, tmp_path):
    written = some_pages(50)
    save_vectors(tmp_path / name, written)
    with open_vectors(tmp_path / name) as file:
        in_order = list(file)
        for number in [49, 0, 17, 16, 48, -1, -50]:
            same(in_order[number], file[number])
            same(written[number], file[number])
        for cut in [slice(3, 20), slice(None), slice(-5, None), slice(20, 3), slice(1, 40, 3), slice(None, None, -1)]:
            view = file[cut]
            assert isinstance(view, VectorFile)
            assert len(view) == len(written[cut])
            assert view.counts.tolist() == [page.n for page in written[cut]]
            for page, read in zip(written[cut], view, strict=True):
                same(page, read)
        same(written[14], file[10:20][1:][3])
        with pytest.raises(IndexError, match="no page 50"):
            file[50]
        with pytest.raises(IndexError):
            file[10:20][10]


@pytest.mark.parametrize("name", ALL)
def test_a_pickle_ships_a_path_and_a_range(name, tmp_path):
    written = [PageVectors(torch.randn(50, 64), id=str(number)) for number in range(20)]
    save_vectors(tmp_path / name, written)
    view = open_vectors(tmp_path / name)[5:15]
    shipped = pickle.dumps(view)
    assert len(shipped) < 600
    twice = [pickle.loads(shipped), pickle.loads(shipped)]
    assert twice[0]._handle is twice[1]._handle
    for page, read in zip(written[5:15], twice[0], strict=True):
        same(page, read)


def test_a_pickle_of_a_relative_path_opens_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_vectors("x.safetensors", some_pages())
    shipped = pickle.dumps(open_vectors("x.safetensors")[2:4])
    code = textwrap.dedent("""
        import pickle, sys
        view = pickle.loads(bytes.fromhex(sys.stdin.read()))
        print(len(view), view[1].id)
    """)
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=shipped.hex(),
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split(maxsplit=1) == ["2", "page 3\n"]


@pytest.mark.parametrize("name", ALL)
def test_a_view_outlives_a_change_of_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_vectors(name, some_pages())
    file = open_vectors(name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for view in (file, copy.copy(file), pickle.loads(pickle.dumps(file))):
        assert [page.id for page in view[2:5]] == ["page 2", "page 3", "page 4"]


@pytest.mark.parametrize("name", ALL)
def test_unpickling_refuses_a_replaced_file_and_a_lost_one(name, tmp_path):
    path = tmp_path / name
    save_vectors(path, some_pages(6))
    file = open_vectors(path)
    shipped = pickle.dumps(file[:6])
    same(some_pages(6)[5], pickle.loads(shipped)[5], ("vectors", "id"))
    changed = some_pages(6, seed=1)
    save_vectors(path, changed)
    for again in (lambda: pickle.loads(shipped), lambda: copy.copy(file)):
        with pytest.raises(FileFormatError, match=f"^{name} has changed since it was opened: open it again$"):
            again()
    same(changed[5], pickle.loads(pickle.dumps(open_vectors(path)))[5], ("vectors", "id"))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match=f"{name} does not exist here"):
        pickle.loads(shipped)


def test_unpickling_refuses_what_was_changed_in_place(tmp_path):
    for name, change in {
        "x.safetensors": lambda path: os.utime(path, ns=(0, 0)),
        "x.lance": lambda path: lance.write_dataset(lance.dataset(path).to_table(), path, mode="append"),
        "folder": lambda path: save_vectors(path, some_pages(8)),
        "loose": lambda path: np.save(path / "a.npy", np.ones((2, 4), np.float16)),
    }.items():
        save_vectors(tmp_path / name / "" if name == "loose" else tmp_path / name, some_pages())
        if name == "loose":
            (tmp_path / name / "pages.json").unlink()
        shipped = pickle.dumps(open_vectors(tmp_path / name))
        assert len(pickle.loads(shipped)) == 7
        change(tmp_path / name)
        with pytest.raises(FileFormatError, match=f"{name} has changed since it was opened"):
            pickle.loads(shipped)


@pytest.mark.parametrize("name", MAPPED)
def test_pages_are_writable_without_changing_the_file(name, tmp_path):
    save_vectors(tmp_path / name, some_pages())
    page = open_vectors(tmp_path / name)[3]
    page.vectors.zero_()
    same(some_pages()[3], open_vectors(tmp_path / name)[3])


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.pt", "x.arrow"])
def test_pages_are_views_of_one_mapping(name, tmp_path):
    save_vectors(tmp_path / name, some_pages())
    file = open_vectors(tmp_path / name)
    again = file[2].vectors.data_ptr()
    assert file[2].vectors.data_ptr() == again
    assert 0 < file[3].vectors.data_ptr() - again < 65536


@pytest.mark.parametrize("name", ALL)
def test_closing_ends_every_view_but_keeps_pages(name, tmp_path):
    save_vectors(tmp_path / name, some_pages())
    file = open_vectors(tmp_path / name)
    view, page = file[2:5], file[1]
    file.close()
    same(some_pages()[1], page)
    for closed in (file, view):
        with pytest.raises(InputError, match="was closed: open it again"):
            closed[0]
        for ship in (copy.copy, pickle.dumps):
            with pytest.raises(InputError, match=f"{name} was closed: open it again"):
                ship(closed)


@pytest.mark.parametrize("old", COMPLETE)
@pytest.mark.parametrize("new", ["x.safetensors", "x.parquet"])
def test_one_format_converts_to_another(old, new, tmp_path):
    save_vectors(tmp_path / old, some_facets())
    save_vectors(tmp_path / f"new-{new}", open_vectors(tmp_path / old))
    read = open_vectors(tmp_path / f"new-{new}")
    assert read.kind == "facets"
    for item, other in zip(some_facets(), read.iter_facets(), strict=True):
        same(item, other, ("assignment", "demand", "offset", "id", "method"))


@pytest.mark.parametrize("name", ALL)
def test_a_file_can_be_rewritten_from_itself(name, tmp_path):
    path = tmp_path / name
    save_vectors(path, some_pages())
    half = (PageVectors(page.vectors[:2], id=page.id) for page in open_vectors(path))
    save_vectors(path, half)
    assert open_vectors(path).counts.tolist() == [2] * 7
    assert listing(tmp_path) == [name]


def contents(path):
    if path.is_file():
        return path.read_bytes()
    return {str(entry.relative_to(path)): entry.read_bytes() for entry in path.rglob("*") if entry.is_file()}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
def test_a_failure_midway_leaves_everything_as_it_was(name, error, tmp_path):
    def failing():
        yield from some_pages(3, seed=1)
        raise error("half of it")

    path = tmp_path / name
    with pytest.raises(error, match="half of it"):
        save_vectors(path, failing())
    assert listing(tmp_path) == []

    save_vectors(path, some_pages())
    before = contents(path)
    with pytest.raises(error, match="half of it"):
        save_vectors(path, failing())
    assert contents(path) == before
    assert listing(tmp_path) == [name]


@pytest.mark.parametrize("name", ALL)
def test_saving_again_replaces_all_of_it(name, tmp_path):
    save_vectors(tmp_path / name, some_pages(9))
    save_vectors(tmp_path / name, some_pages(2, dim=3, seed=5))
    file = open_vectors(tmp_path / name)
    assert (len(file), file.dim) == (2, 3)
    assert listing(tmp_path) == [name]


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.pt"])
def test_the_same_pages_make_the_same_bytes(name, tmp_path):
    save_vectors(tmp_path / name, some_pages(), metadata={"model": "m"})
    before = contents(tmp_path / name)
    save_vectors(tmp_path / name, some_pages(), metadata={"model": "m"})
    assert contents(tmp_path / name) == before


def test_saving_through_a_link_keeps_the_link(tmp_path):
    save_vectors(tmp_path / "real.safetensors", some_pages(2))
    (tmp_path / "link.safetensors").symlink_to("real.safetensors")
    save_vectors(tmp_path / "link.safetensors", some_pages(5))
    assert (tmp_path / "link.safetensors").is_symlink()
    assert len(open_vectors(tmp_path / "real.safetensors")) == 5


def test_vectors_of_any_memory_layout_are_saved_by_value(tmp_path):
    wide = torch.randn(6, 8, requires_grad=True)
    written = [PageVectors(wide[::2, 1:5]), PageVectors(torch.randn(4, 5).T[:, :4])]
    save_vectors(tmp_path / "x.safetensors", written)
    for page, read in zip(written, open_vectors(tmp_path / "x.safetensors"), strict=True):
        same(page, read)


@pytest.mark.parametrize("compress", [False, True])
def test_queries_and_relevance_beside_the_pages(compress, tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((10, 4)).astype(np.float16)
    queries = rng.standard_normal((3, 2, 4)).astype(np.float16)
    qrels = np.array([[0, 0], [1, 2], [2, 3], [2, 1]], np.int32)
    (np.savez_compressed if compress else np.savez)(
        tmp_path / "x.npz",
        page_vectors=vectors,
        page_offsets=np.array([0, 2, 5, 6, 10]),
        query_vectors=queries,
        qrels=qrels,
        source=np.array(["ä", "b", "b", "c"]),
        ids=np.array(["one", "two", "three", "four"]),
    )
    file = open_vectors(tmp_path / "x.npz")
    assert [page.id for page in file] == ["one", "two", "three", "four"]
    assert np.array_equal(file[1].vectors.numpy(), vectors[2:5])
    assert [query.tolist() for query in file.queries()] == queries.tolist()
    assert file.qrels.tolist() == qrels.tolist()
    assert file.sources == ["ä", "b", "b", "c"]
    view = file[1:3]
    assert view.qrels.tolist() == [[1, 1], [2, 0]]
    assert view.sources == ["b", "b"]


def test_queries_of_different_lengths(tmp_path):
    torch.save(
        {
            "vectors": torch.randn(5, 4),
            "offsets": torch.tensor([0, 5]),
            "query_vectors": torch.arange(12.0).reshape(3, 4),
            "query_offsets": torch.tensor([0, 1, 3]),
        },
        tmp_path / "x.pt",
    )
    assert [query[:, 0].tolist() for query in open_vectors(tmp_path / "x.pt").queries()] == [[0.0], [4.0, 8.0]]


def test_a_file_without_queries_says_so(tmp_path):
    save_vectors(tmp_path / "x.safetensors", some_pages())
    file = open_vectors(tmp_path / "x.safetensors")
    assert file.queries() == []
    assert file.qrels is None
    assert file.sources is None
    with pytest.raises(InputError, match=r"x\.safetensors holds page vectors, not facets"):
        file.facets(0)
    with pytest.raises(InputError, match="not facets"):
        file.iter_facets()


def test_names_choose_the_format(tmp_path):
    save_vectors(str(tmp_path / "model-v2.5") + "/", some_pages())
    assert (tmp_path / "model-v2.5" / "000006.npy").exists()
    assert len(open_vectors(tmp_path / "model-v2.5")) == 7
    save_vectors(str(tmp_path / "x.lance") + "/", some_pages())
    save_vectors(str(tmp_path / "x.lance") + "/", some_pages(3))
    assert (tmp_path / "x.lance" / "_versions").is_dir()
    assert len(open_vectors(str(tmp_path / "x.lance") + "/")) == 3
    save_vectors(tmp_path / "X.SafeTensors", some_pages())
    assert len(open_vectors(tmp_path / "X.SafeTensors")) == 7
    assert open_vectors(tmp_path / "X.SafeTensors").name == "X.SafeTensors"


def test_neither_pyarrow_nor_lance_is_imported_before_it_is_needed(tmp_path):
    code = """
import sys, torch
from pagefacets.data import PageVectors
from pagefacets.vectors.files import open_vectors, save_vectors
for name in ("x.safetensors", "x.npz", "x.pt", "folder"):
    save_vectors(name, [PageVectors(torch.ones(2, 3))])
    assert open_vectors(name)[0].n == 2
assert not {"pyarrow", "lance"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True)


@pytest.mark.realdata
def test_real_files(realdata):
    lotte = open_vectors(realdata / "lotte-colbertv2" / "dev.npz")
    assert (len(lotte), lotte.rows, lotte.dim, lotte.dtype) == (500, 56_658, 128, torch.float16)
    assert len(lotte.queries()) == 50
    assert lotte.queries()[0].shape == (32, 128)
    assert int(lotte.qrels[:, 1].max()) < 500
    visual = open_vectors(realdata / "visual-pages" / "colqwen2.npz")
    with np.load(realdata / "visual-pages" / "colqwen2.npz", allow_pickle=False) as raw:
        for number in (0, 77, 139):
            start, stop = raw["page_offsets"][number : number + 2]
            assert np.array_equal(visual[number].vectors.numpy(), raw["page_vectors"][start:stop])
        assert visual.sources == raw["source"].tolist()
