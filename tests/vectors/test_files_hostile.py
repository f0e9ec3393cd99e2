"""Files that are damaged, mistaken for others or made to harm: one sentence each, never a crash."""

import inspect
import io
import json
import os
import pickle
import shutil
import struct
import zipfile

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from pagefacets.data import Facets, PageVectors
from pagefacets.errors import FileFormatError, InputError
from pagefacets.vectors.files import open_vectors, save_vectors

ALL = ["x.safetensors", "x.npz", "x.pt", "x.arrow", "x.parquet", "x.lance", "folder"]


def some_pages(count=7):
    generator = torch.Generator().manual_seed(0)
    return [PageVectors(torch.randn(40, 16, generator=generator).half(), id=str(number)) for number in range(count)]


def read_all(path):
    file = open_vectors(path)
    file.counts.sum()
    return list(file)


def refused(path, *words):
    with pytest.raises(InputError) as caught:
        read_all(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in (path.name, *words):
        assert word in sentence, sentence


def packed(path, **arrays):
    """The same arrays in the format that the path's suffix names."""
    tensors = {name: torch.as_tensor(value) for name, value in arrays.items()}
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    else:
        torch.save(tensors, path)
    return path


packed_formats = pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.pt"])


@pytest.mark.parametrize("name", ALL)
def test_a_missing_path(name, tmp_path):
    refused(tmp_path / name, "does not exist")


def test_a_suffix_nobody_knows(tmp_path):
    (tmp_path / "x.docx").write_bytes(b"PK")
    refused(tmp_path / "x.docx", "suffix", ".safetensors")
    (tmp_path / "x").write_bytes(b"PK")
    refused(tmp_path / "x", "suffix")
    with pytest.raises(InputError, match=r"x\.docx has a suffix nobody writes here: use one of \.safetensors"):
        save_vectors(tmp_path / "x.docx", some_pages())


def test_folders_without_pages(tmp_path):
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no .npy files")
    (tmp_path / "x.lance").mkdir()
    refused(tmp_path / "x.lance", "no .npy files")


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.pt", "x.arrow", "x.parquet"])
def test_files_cut_short_at_any_point(name, tmp_path):
    path = tmp_path / name
    save_vectors(path, some_pages())
    whole = path.read_bytes()
    for kept in [*range(0, len(whole), max(1, len(whole) // 25)), len(whole) - 1]:
        path.write_bytes(whole[:kept])
        refused(path)


def test_a_lance_table_cut_short(tmp_path):
    save_vectors(tmp_path / "x.lance", some_pages())
    for folder in ("data", "_versions"):
        shutil.copytree(tmp_path / "x.lance", tmp_path / folder / "x.lance")
        for file in (tmp_path / folder / "x.lance" / folder).iterdir():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        refused(tmp_path / folder / "x.lance")


def test_a_folder_with_a_page_cut_short_or_lost(tmp_path):
    save_vectors(tmp_path / "folder", some_pages())
    page = tmp_path / "folder" / "000003.npy"
    whole = page.read_bytes()
    for kept in (0, 5, 60, 200, len(whole) - 1):
        page.write_bytes(whole[:kept])
        refused(tmp_path / "folder", "000003.npy")
    page.unlink()
    refused(tmp_path / "folder", "000003.npy", "cannot be read")
    (tmp_path / "folder" / "pages.json").write_text("{")
    refused(tmp_path / "folder", "pages.json", "not JSON")
    (tmp_path / "folder" / "pages.json").write_text('{"ids": [3]}')
    refused(tmp_path / "folder", "pages.json", "lacks")


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.pt", "x.arrow", "x.parquet"])
def test_noise_is_refused(name, tmp_path):
    rng = np.random.default_rng(0)
    for size in (1, 7, 8, 9, 100, 5000):
        (tmp_path / name).write_bytes(rng.bytes(size))
        refused(tmp_path / name)


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.pt", "x.arrow", "x.parquet"])
def test_damaged_bytes_end_in_a_sentence_or_in_pages(name, tmp_path):
    path = tmp_path / name
    save_vectors(path, some_pages(3))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(3):
            near_an_end = rng.integers(0, 700) if rng.random() < 0.5 else len(whole) - 1 - rng.integers(0, 1500)
            damaged[near_an_end] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            read_all(path)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017


@packed_formats
@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([0, 3, 3, 10], ("page 1", "is empty")),
        ([0, 5, 4, 10], ("page 1", "ends before it starts")),
        ([0, 5, 9], ("from 0 to the 10 rows", "0 to 9")),
        ([1, 5, 10], ("from 0 to the 10 rows", "1 to 10")),
        ([0, 5, 11], ("0 to 11",)),
        ([0], ("no pages",)),
        ([], ("no pages",)),
        ([[0, 5, 10]], ("one axis",)),
        ([0.0, 5.0, 10.0], ("whole numbers", "float32")),
    ],
)
def test_offsets_that_do_not_cut_the_rows(name, offsets, words, tmp_path):
    kind = torch.float32 if any(isinstance(value, float) for value in offsets) else torch.int64
    path = packed(tmp_path / name, vectors=torch.randn(10, 4), offsets=torch.tensor(offsets, dtype=kind))
    refused(path, "'offsets'", *words)


@packed_formats
@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        (torch.randn(10), ("two axes", "(10,)")),
        (torch.randn(2, 5, 4), ("two axes", "padding")),
        (torch.ones(10, 4, dtype=torch.int8), ("floating point", "int8")),
        (torch.ones(10, 4, dtype=torch.int64), ("floating point", "int64")),
        (torch.ones(10, 0), ("dimension 0",)),
    ],
)
def test_vectors_that_are_no_vectors(name, vectors, words, tmp_path):
    refused(packed(tmp_path / name, vectors=vectors, offsets=torch.tensor([0, 10])), "'vectors'", *words)


@packed_formats
@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"grid": torch.ones(3, 2, dtype=torch.int32)}, "'grid'"),
        ({"image_mask": torch.ones(9, dtype=torch.uint8)}, "'image_mask'"),
        ({"image_mask": torch.tensor([2, 1] * 5, dtype=torch.uint8)}, "'image_mask'"),
        ({"importance": torch.ones(10, 1)}, "'importance'"),
        ({"boxes": torch.ones(10, 3)}, "'boxes'"),
        ({"ids": torch.ones(3, dtype=torch.uint8)}, "'id_offsets'"),
        ({"ids": torch.ones(3, dtype=torch.uint8), "id_offsets": torch.tensor([0, 1, 4])}, "'ids'"),
        ({"ids": torch.full((3,), 255, dtype=torch.uint8), "id_offsets": torch.tensor([0, 1, 3])}, "UTF-8"),
        ({"ids": torch.ones(3, dtype=torch.uint8), "id_offsets": torch.tensor([0, 3])}, "'ids'"),
        ({"grid": torch.tensor([[7, 1], [1, 5]], dtype=torch.int32)}, "page 0: grid (7, 1)"),
        ({"grid": torch.tensor([[-5, -1], [1, 5]], dtype=torch.int32)}, "page 0: grid"),
        ({"assignment": torch.zeros(5, dtype=torch.int32)}, "'source_offsets'"),
        ({"assignment": torch.zeros(5), "source_offsets": torch.tensor([0, 2, 5])}, "'assignment'"),
        (
            {"assignment": torch.zeros(5, dtype=torch.int32), "source_offsets": torch.tensor([0, 5])},
            "'source_offsets' has 2",
        ),
        ({"query_vectors": torch.ones(4, 4)}, "'query_vectors'"),
        ({"qrels": torch.ones(4, 3, dtype=torch.int64)}, "'qrels'"),
    ],
)
def test_side_arrays_that_do_not_fit(name, extra, word, tmp_path):
    refused(packed(tmp_path / name, vectors=torch.randn(10, 4), offsets=torch.tensor([0, 5, 10]), **extra), word)


@packed_formats
def test_an_assignment_to_facets_that_are_not_there(name, tmp_path):
    path = packed(
        tmp_path / name,
        vectors=torch.randn(3, 4),
        offsets=torch.tensor([0, 1, 3]),
        assignment=torch.tensor([0, 0, 2], dtype=torch.int32),
        source_offsets=torch.tensor([0, 1, 3]),
    )
    file = open_vectors(path)
    assert file.facets(0).k == 1
    with pytest.raises(FileFormatError, match="page 1: assignment must lie between -1 and 1 for 2 facets, got 0 to 2"):
        file.facets(1)


@packed_formats
def test_vectors_without_offsets_and_offsets_without_vectors(name, tmp_path):
    refused(packed(tmp_path / name, vectors=torch.randn(10, 4)), "not 'offsets'")
    refused(packed(tmp_path / name, offsets=torch.tensor([0, 10])), "needs 'vectors'", "offsets")
    refused(packed(tmp_path / name, page_vectors=torch.randn(10, 4), offsets=torch.tensor([0, 10])), "'page_offsets'")


@packed_formats
def test_a_matrix_per_page_of_mixed_kinds(name, tmp_path):
    file = open_vectors(packed(tmp_path / name, a=torch.randn(3, 4), b=torch.randn(5, 4)))
    assert {page.id: page.n for page in file} == {"a": 3, "b": 5}
    refused(packed(tmp_path / name, a=torch.randn(3, 4), b=torch.randn(5, 3)), "page 1", "dimension 3")
    refused(packed(tmp_path / name, a=torch.randn(3, 4), b=torch.randn(5, 4).half()), "page 1", "float16")
    refused(packed(tmp_path / name, a=torch.randn(3, 4), b=torch.randn(0, 4)), "page 1", "is empty")
    refused(packed(tmp_path / name, a=torch.ones(3, 4, dtype=torch.int32)), "page 0", "int32")


@packed_formats
def test_a_layout_of_the_future(name, tmp_path):
    path = tmp_path / name
    save_vectors(path, some_pages())
    if name == "x.pt":
        content = torch.load(path, weights_only=True)
        torch.save({**content, "metadata": {"pagefacets.vectors": "2"}}, path)
    else:
        whole = path.read_bytes()
        mark = b"1\x00\x00\x00" if name == "x.npz" else b'1"'
        lead = "pagefacets.vectors".encode("utf-32-le" if name == "x.npz" else "ascii")
        at = whole.index(mark, whole.index(lead) + len(lead))
        path.write_bytes(whole[:at] + b"2" + whole[at + 1 :])
    refused(path, "version '2'", "upgrade")


@pytest.mark.parametrize(
    ("header", "word"),
    [
        (struct.pack("<Q", 2**63), "header claims 9223372036854775808"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "header claims"),
        (struct.pack("<Q", 100) + b"{}", "header claims 100"),
        (struct.pack("<Q", 2) + b"[]", "not a map"),
        (struct.pack("<Q", 2) + b"{]", "not JSON"),
        (struct.pack("<Q", 2) + b"{}", "needs 'vectors'"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "not JSON"),
    ],
)
def test_safetensors_headers(header, word, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(header)
    refused(path, word)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F16", "shape": [4, 4], "data_offsets": [0, 31]},
        {"dtype": "F16", "shape": [4, 4], "data_offsets": [40, 72]},
        {"dtype": "F16", "shape": [-4, -4], "data_offsets": [0, 32]},
        {"dtype": "F16", "shape": [4, 4], "data_offsets": [-32, 0]},
        {"dtype": "F16", "shape": [2**62, 4], "data_offsets": [0, 0]},
        {"dtype": "F4", "shape": [4, 4], "data_offsets": [0, 8]},
        {"dtype": "F16", "shape": "4,4", "data_offsets": [0, 32]},
        {"dtype": "F16", "shape": [4, 4]},
        [0, 32],
    ],
)
def test_safetensors_entries(entry, tmp_path):
    header = json.dumps({"vectors": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 32)
    refused(path, "'vectors'")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save([Bomb()], "x.pt")
    refused(tmp_path / "x.pt", "pickle", "torch.save")
    (tmp_path / "x.pt").write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path / "x.pt", "pickle")
    np.savez("x.npz", vectors=np.array([Bomb(), None]), offsets=np.array([0, 1]))
    refused(tmp_path / "x.npz", "'vectors'", "pickled Python objects")
    (tmp_path / "folder").mkdir()
    np.save("folder/a.npy", np.array([Bomb(), None]))
    refused(tmp_path / "folder", "a.npy", "pickled Python objects")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (3, "holds a int"),
        (torch.randn(3, 4), "holds a Tensor"),
        ([], "no pages"),
        ([torch.randn(3, 4), [1.0]], "entry 1 is a list"),
        ([torch.randn(3, 4), torch.randn(3, 5)], "page 1"),
        ([torch.randn(3, 4).to_sparse()], "not a dense tensor"),
        ({"a": torch.randn(3, 4), "b": 3}, "entry 'b' is a int"),
        ({1: torch.randn(3, 4), "1": torch.randn(3, 4)}, "two pages"),
        ({"a": torch.randn(3, 4), "metadata": 3}, "'metadata'"),
    ],
)
def test_torch_files_of_something_else(content, word, tmp_path):
    torch.save(content, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", word)


def test_npz_archives_of_something_else(tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vectors.npy", b"not an array")
    refused(path, "'vectors'", "not an npy array")
    np.savez(path, vectors=np.zeros((2, 3), "c8"), offsets=[0, 2])
    refused(path, "'vectors'", "complex64")
    np.savez(path, vectors=np.zeros((2, 3), "f4"), offsets=[0, 2], metadata="[]")
    refused(path, "'metadata'")
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 3)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vectors.npy", stream.getvalue() + b"\0" * 24)
    refused(path, "'vectors'", "truncated")


def tables(path, table):
    if path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        lance.write_dataset(table, str(path))
    return path


LISTS = pa.list_(pa.list_(pa.float32()))


@pytest.mark.parametrize("name", ["x.arrow", "x.parquet", "x.lance"])
@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        ([[[1.0, 2.0]], []], LISTS, ("page 1", "is empty")),
        ([[[1.0, 2.0]], None], LISTS, ("page 1", "null")),
        ([[[1.0, 2.0]], [None]], LISTS, ("page 1", "null")),
        ([[[1.0, 2.0]], [[1.0, None]]], LISTS, ("page 1", "1 of the numbers are null")),
        ([[[1.0, 2.0]], [[1.0, 2.0], [3.0]]], LISTS, ("page 1", "1 to 2 numbers")),
        ([[[1.0, 2.0]], [[1.0]]], LISTS, ("page 1", "dimension 1")),
        ([[1.0, 2.0]], pa.list_(pa.float32()), ("nested lists", "all vectors of a page")),
        ([[[1, 2]]], pa.list_(pa.list_(pa.int32())), ("nested lists of floating-point", "int32")),
        (["text"], pa.string(), ("nested lists", "embedding (string)")),
        ([], LISTS, ("no pages",)),
    ],
)
def test_nested_lists_that_are_no_pages(name, rows, kind, words, tmp_path):
    path = tables(tmp_path / name, pa.table({"embedding": pa.array(rows, kind)}))
    refused(path, *words)


@pytest.mark.parametrize("name", ["x.arrow", "x.parquet", "x.lance"])
def test_tables_with_several_columns_of_vectors(name, tmp_path):
    column = pa.array([[[1.0, 2.0]]], LISTS)
    refused(tables(tmp_path / name, pa.table({"left": column, "right": column})), "left", "right", "name one of them")


def damaged_table(path, page, **columns):
    save_vectors(path.with_name("whole.arrow"), [page])
    with pa.memory_map(str(path.with_name("whole.arrow"))) as source:
        table = pa.ipc.open_file(source).read_all()
    for name, value in columns.items():
        at = table.schema.get_field_index(name)
        kind = table.schema.field(name)
        table = table.remove_column(at) if value == "gone" else table.set_column(at, kind, pa.array([value], kind.type))
    return tables(path, table)


@pytest.mark.parametrize("name", ["x.arrow", "x.parquet", "x.lance"])
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"count": 4}, ("page 0", "not 4 vectors of dimension 4")),
        ({"count": None}, ("page 0",)),
        ({"vectors": b"abc"}, ("page 0", "3 bytes")),
        ({"vectors": None}, ("page 0",)),
        ({"vectors": b"", "count": 0}, ("page 0", "empty")),
        ({"boxes": b"\0" * 20}, ("page 0", "boxes")),
        ({"image_mask": b"\1\1"}, ("page 0", "image_mask")),
        ({"grid_columns": 7, "grid_rows": 1}, ("page 0", "grid (7, 1)")),
        ({"id": "gone"}, ("column 'id'",)),
    ],
)
def test_tables_of_ours_that_were_damaged(name, columns, words, tmp_path):
    refused(damaged_table(tmp_path / name, PageVectors(torch.randn(3, 4), id="a"), **columns), *words)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"demand": b"\0" * 12}, "page 0: demand has 3 values and assignment 2"),
        ({"assignment": None}, "page 0: there is no assignment"),
        ({"assignment": b""}, "page 0: assignment is empty"),
        ({"assignment": b"\0" * 7}, "page 0: 7 bytes"),
    ],
)
def test_facets_of_ours_that_were_damaged(columns, words, tmp_path):
    whole = Facets(torch.randn(3, 4), torch.tensor([0, 2]), torch.ones(2) / 2)
    file = open_vectors(damaged_table(tmp_path / "x.arrow", whole, **columns))
    with pytest.raises(FileFormatError, match=words):
        file.facets(0)


@pytest.mark.parametrize("note", [b"{", b"{}", b'{"version":"1","dtype":"int8","dim":4,"kind":"pages","metadata":{}}'])
def test_a_damaged_note_in_the_schema(note, tmp_path):
    table = pa.table({"vectors": pa.array([b"1234"])}).replace_schema_metadata({b"pagefacets.vectors": note})
    refused(tables(tmp_path / "x.arrow", table), "'pagefacets.vectors' entry is damaged")
    newer = note.replace(b'"1"', b'"2"').replace(b"int8", b"float16")
    if b"version" in newer:
        table = table.replace_schema_metadata({b"pagefacets.vectors": newer})
        refused(tables(tmp_path / "x.arrow", table), "version '2'", "upgrade")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ([], "no pages to save"),
        (iter([]), "no pages to save"),
        (PageVectors(torch.randn(3, 4)), "put it in a list"),
        (3, "iterable of pages, got one int"),
        ([torch.randn(3, 4)], "page 0 is a Tensor"),
        ([PageVectors(torch.randn(3, 4)), None], "page 1 is a NoneType"),
        ([PageVectors(torch.randn(3, 4)), PageVectors(torch.randn(3, 5), id="b")], r"page 1 \('b'\) .* dimension 5"),
        ([PageVectors(torch.randn(3, 4)), PageVectors(torch.randn(3, 4).half())], "page 1 .*float16"),
        ([PageVectors(torch.randn(3, 4)), Facets(torch.randn(3, 4), torch.tensor([0]))], "page 1 .* facets"),
        ([PageVectors(torch.randn(3, 4).to(torch.float8_e4m3fn))], "page 0 .*float8"),
        ([Facets(torch.randn(3, 4), torch.tensor([0, 3]))], "page 0 .* between -1 and 2"),
    ],
)
def test_pages_that_cannot_be_saved(name, pages, words, tmp_path):
    with pytest.raises(InputError, match=words):
        inspect.unwrap(save_vectors)(tmp_path / name, pages)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.pt"])
def test_an_id_that_is_no_text(name, tmp_path):
    with pytest.raises(InputError, match="UTF-8"):
        save_vectors(tmp_path / name, [PageVectors(torch.randn(3, 4), id="\ud800")])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ALL)
def test_an_id_that_is_a_number(name, tmp_path):
    page = PageVectors(torch.randn(3, 4))
    object.__setattr__(page, "id", 7)
    with pytest.raises(InputError, match=r"page 0 has the id 7: ids are strings, use str\(\.\.\.\)"):
        save_vectors(tmp_path / name, iter([page]))
    assert not any(tmp_path.iterdir())


def test_metadata_that_cannot_be_kept(tmp_path):
    for metadata in ({"pages": 3}, {3: "pages"}, {"pagefacets.vectors": "9"}):
        with pytest.raises(InputError, match="metadata"):
            inspect.unwrap(save_vectors)(tmp_path / "x.safetensors", some_pages(), metadata=metadata)


def test_saving_never_deletes_what_is_no_vector_file(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "y.lance").mkdir()
    (tmp_path / "y.lance" / "chapter.tex").write_text("years of work")
    (tmp_path / "plain").write_text("years of work")
    (tmp_path / "z.safetensors").mkdir()
    cases = [
        ("thesis", "holds more than"),
        ("y.lance", "not a Lance table"),
        ("plain", "is a file"),
        ("z.safetensors", "is a folder"),
        ("nowhere/x.npz", "does not exist: create it"),
    ]
    for name, words in cases:
        with pytest.raises(InputError, match=words):
            save_vectors(tmp_path / name, some_pages())
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    assert (tmp_path / "y.lance" / "chapter.tex").read_text() == "years of work"
    assert (tmp_path / "plain").read_text() == "years of work"
    assert sum(1 for _ in tmp_path.iterdir()) == 4
