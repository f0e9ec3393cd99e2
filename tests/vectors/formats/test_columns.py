"""Tables: nested lists as people have them, and the binary column we write."""

import json

import lance
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

from pagefacets.data import PageVectors
from pagefacets.vectors.files import open_vectors, save_vectors

ROWS = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]], [[7.0, 8.0], [9.0, 10.0], [-1.0, 0.5]]]


def write(path, table):
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    elif path.suffix == ".lance":
        lance.write_dataset(table, str(path))
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path, compression="lz4")
    else:
        with pa.OSFile(str(path), "wb") as sink:
            opened = pa.ipc.new_stream if path.stem == "stream" else pa.ipc.new_file
            with opened(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
    return path


every_table = pytest.mark.parametrize("name", ["x.arrow", "stream.arrow", "x.feather", "x.parquet", "x.lance"])


@every_table
@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.float32())),
        pa.list_(pa.list_(pa.float64())),
        pa.list_(pa.list_(pa.float16())),
        pa.list_(pa.list_(pa.float16(), 2)),
        pa.list_(pa.list_(pa.float32(), 2)),
        pa.large_list(pa.list_(pa.float32())),
        pa.large_list(pa.large_list(pa.float32())),
        pa.list_(pa.large_list(pa.float64())),
    ],
    ids=str,
)
def test_nested_lists_of_every_kind(name, kind, tmp_path):
    rows = [np.array(page, np.float16).tolist() for page in ROWS]
    if "halffloat" in str(kind):
        rows = [[[np.float16(value) for value in row] for row in page] for page in rows]
    table = pa.table({"number": [3, 4, 5], "page_id": ["a", None, "ü"], "embedding": pa.array(rows, kind)})
    file = open_vectors(write(tmp_path / name, table))
    assert len(file) == 3
    assert file.dim == 2
    assert str(file.dtype).endswith({"halffloat": "16", "float": "32", "double": "64"}[str(innermost(kind))])
    assert [page.vectors.tolist() for page in file] == ROWS
    assert [file[number].vectors.tolist() for number in (2, 0, 1)] == [ROWS[2], ROWS[0], ROWS[1]]
    assert [page.id for page in file] == ["a", None, "ü"]
    assert file.counts.tolist() == [2, 1, 3]
    assert [page.vectors.tolist() for page in file[1:]] == ROWS[1:]


def innermost(kind):
    return kind.value_type.value_type


@pytest.mark.parametrize("name", ["x.arrow", "x.feather", "x.parquet"])
def test_pages_of_one_fixed_size(name, tmp_path):
    kind = pa.list_(pa.list_(pa.float32(), 2), 3)
    rows = [[[1.0, 2.0]] * 3, [[3.0, 4.0]] * 3]
    file = open_vectors(write(tmp_path / name, pa.table({"embeddings": pa.array(rows, kind)})))
    assert [page.vectors.tolist() for page in file] == rows
    assert file.counts.tolist() == [3, 3]


@every_table
def test_a_sliced_table_of_several_chunks(name, tmp_path):
    kind = pa.list_(pa.list_(pa.float32()))
    chunks = [pa.array([[[9.0, 9.0]], *ROWS], kind)[1:], pa.array(ROWS[:2], kind)]
    table = pa.table({"id": [10, 11, 12, 13, 14], "vectors": pa.chunked_array(chunks)}).slice(1)
    file = open_vectors(write(tmp_path / name, table))
    assert [page.vectors.tolist() for page in file] == [*ROWS[1:], *ROWS[:2]]
    assert [page.id for page in file] == ["11", "12", "13", "14"]


@every_table
def test_the_column_is_found_by_name_or_because_it_is_the_only_one(name, tmp_path):
    kind = pa.list_(pa.list_(pa.float32()))
    good, other = pa.array(ROWS, kind), pa.array([[[0.0]]] * 3, kind)
    flat = pa.array([[1.0, 2.0]] * 3)
    file = open_vectors(write(tmp_path / name, pa.table({"aaa": other, "embedding": good, "doc_id": ["x", "y", "z"]})))
    assert [page.vectors.tolist() for page in file] == ROWS
    assert [page.id for page in file] == ["x", "y", "z"]
    file = open_vectors(write(tmp_path / f"only-{name}", pa.table({"pooled": flat, "colpali": good})))
    assert [page.vectors.tolist() for page in file] == ROWS


class Array2D(pa.ExtensionType):
    def __init__(self):
        super().__init__(pa.list_(pa.list_(pa.float32())), "tests.array2d")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("name", ["x.arrow", "x.parquet"])
def test_nested_lists_under_another_type(name, registered, tmp_path):
    column = pa.ExtensionArray.from_storage(Array2D(), pa.array(ROWS, pa.list_(pa.list_(pa.float32()))))
    write(tmp_path / name, pa.table({"embeddings": column}))
    if registered:
        pa.register_extension_type(Array2D())
    try:
        file = open_vectors(tmp_path / name)
        assert [page.vectors.tolist() for page in file] == ROWS
        assert file.counts.tolist() == [2, 1, 3]
    finally:
        if registered:
            pa.unregister_extension_type("tests.array2d")


def test_values_in_a_mapped_file_are_views(tmp_path):
    rows = torch.randn(40, 8).half()
    inner = pa.FixedSizeListArray.from_arrays(pa.array(rows.flatten().numpy()), 8)
    outer = pa.ListArray.from_arrays(pa.array([0, 15, 40], pa.int32()), inner)
    file = open_vectors(write(tmp_path / "x.arrow", pa.table({"vectors": outer})))
    assert torch.equal(file[1].vectors, rows[15:])
    assert file[1].vectors.data_ptr() == file[1].vectors.data_ptr()
    assert file[1].vectors.data_ptr() - file[0].vectors.data_ptr() == 15 * 16


@pytest.mark.parametrize("name", ["x.arrow", "x.parquet", "x.lance"])
def test_the_schema_says_how_to_read_the_bytes(name, tmp_path):
    vectors = torch.randn(3, 4).bfloat16()
    save_vectors(tmp_path / name, [PageVectors(vectors, id="a", grid=(3, 1))], metadata={"model": "m"})
    if name == "x.arrow":
        table = pa.ipc.open_file(pa.memory_map(str(tmp_path / name))).read_all()
    else:
        table = pq.read_table(tmp_path / name) if name == "x.parquet" else lance.dataset(tmp_path / name).to_table()
    note = json.loads(table.schema.metadata[b"pagefacets.vectors"])
    assert note == {"version": "1", "dtype": "bfloat16", "dim": 4, "kind": "pages", "metadata": {"model": "m"}}
    (row,) = table.to_pylist()
    assert row["vectors"] == vectors.view(torch.uint8).numpy().tobytes()
    assert (row["count"], row["id"], row["grid_columns"], row["grid_rows"], row["boxes"]) == (3, "a", 3, 1, None)


def test_parquet_scans_stay_within_the_pages_asked_for(tmp_path):
    pages = [PageVectors(torch.full((300, 128), float(number))) for number in range(150)]
    save_vectors(tmp_path / "x.parquet", pages)
    groups = pq.ParquetFile(tmp_path / "x.parquet").num_row_groups
    assert 2 < groups < 10
    file = open_vectors(tmp_path / "x.parquet")
    for start, stop in [(0, 150), (0, 1), (149, 150), (50, 60), (54, 110), (16, 17), (70, 70)]:
        assert [int(page.vectors[0, 0]) for page in file[start:stop]] == list(range(start, stop))


def test_slices_of_a_compressed_feather_file_decompress_a_batch_once(tmp_path):
    values = np.repeat(np.arange(2000, dtype=np.float32), 40 * 32)
    inner = pa.FixedSizeListArray.from_arrays(pa.array(values), 32)
    outer = pa.ListArray.from_arrays(pa.array(np.arange(2001, dtype=np.int32) * 40), inner)
    pyarrow.feather.write_feather(pa.table({"vectors": outer}), tmp_path / "x.feather", "lz4", chunksize=1000)
    file = open_vectors(tmp_path / "x.feather")
    before = pa.default_memory_pool().total_bytes_allocated()
    for start in range(0, 2000, 32):
        assert [int(page.vectors[0, 0]) for page in file[start : start + 32]] == list(range(2000))[start : start + 32]
    assert pa.default_memory_pool().total_bytes_allocated() - before < 2 * values.nbytes
