"""Packed files as other programs write and read them."""

import json
import struct
import zipfile

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pagefacets.data import Facets, PageVectors
from pagefacets.vectors.files import open_vectors, save_vectors


def pages(dtype=torch.float16, dim=3):
    return [
        PageVectors(torch.randn(2, dim).to(dtype), id="ä", boxes=torch.rand(2, 4)),
        PageVectors(torch.randn(5, dim).to(dtype), grid=(3, 1), image_mask=[True, True, True, False, False]),
        PageVectors(torch.randn(4, dim).to(dtype), importance=[0.5, float("nan"), 1.0, 2.0]),
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_safetensors_itself_reads_what_we_write(dtype, tmp_path):
    written = pages(dtype)
    save_vectors(tmp_path / "x.safetensors", written, metadata={"model": "m"})
    found = load_file(tmp_path / "x.safetensors")
    assert torch.equal(found["vectors"], torch.cat([page.vectors for page in written]))
    assert found["vectors"].dtype == dtype
    assert found["offsets"].tolist() == [0, 2, 7, 11]
    assert found["offsets"].dtype == torch.int64
    assert bytes(found["ids"].tolist()).decode() == "ä"
    assert found["id_offsets"].tolist() == [0, 2, 2, 2]
    assert found["grid"].tolist() == [[0, 0], [3, 1], [0, 0]]
    assert found["grid"].dtype == torch.int32
    assert found["image_mask"].tolist() == [2, 2, 1, 1, 1, 0, 0, 2, 2, 2, 2]
    assert found["importance"].isnan().tolist() == [True] * 7 + [False, True, False, False]
    assert found["boxes"].isnan().any(1).tolist() == [False] * 2 + [True] * 9
    assert set(found) == {"vectors", "offsets", "ids", "id_offsets", "grid", "image_mask", "importance", "boxes"}
    with safe_open(tmp_path / "x.safetensors", "pt") as opened:
        assert opened.metadata() == {"model": "m", "pagefacets.vectors": "1"}


def test_safetensors_of_facets(tmp_path):
    written = [
        Facets(torch.randn(1, 3), torch.tensor([0, -1, 0]), torch.tensor([0.2, 0.3, 0.5]), offset=0.1, method="magic"),
        Facets(torch.randn(2, 3), torch.tensor([1, 0])),
    ]
    save_vectors(tmp_path / "x.safetensors", written)
    found = load_file(tmp_path / "x.safetensors")
    assert found["assignment"].tolist() == [0, -1, 0, 1, 0]
    assert found["assignment"].dtype == torch.int32
    assert found["source_offsets"].tolist() == [0, 3, 5]
    assert found["demand"].isnan().tolist() == [False] * 3 + [True] * 2
    assert found["offset"].isnan().tolist() == [False, True]
    assert found["method_offsets"].tolist() == [0, 5, 5]


def test_the_reserved_header_is_padded_and_aligned(tmp_path):
    save_vectors(tmp_path / "x.safetensors", pages())
    raw = (tmp_path / "x.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert (8 + length) % 64 == 0
    assert raw[8:9] == b"{"
    header = json.loads(raw[8 : 8 + length])
    assert max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__") == len(raw) - (
        8 + length
    )


@pytest.mark.parametrize("size", [1, 1000, 200_000])
def test_metadata_of_any_size_fits_the_header(size, tmp_path):
    metadata = {"note": 'ü"\n' * size, "empty": ""}
    save_vectors(tmp_path / "x.safetensors", pages(), metadata=metadata)
    assert open_vectors(tmp_path / "x.safetensors").metadata == metadata
    assert len(load_file(tmp_path / "x.safetensors")["offsets"]) == 4


def test_safetensors_with_vectors_at_an_odd_byte(tmp_path):
    vectors = torch.randn(6, 4)
    tensors = {"odd": (b"\1", "U8", [1]), "vectors": (vectors.numpy().tobytes(), "F32", [6, 4])}
    tensors["offsets"] = (np.array([0, 2, 6]).tobytes(), "I64", [3])
    header, data = {}, b""
    for name, (raw, dtype, shape) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    file = open_vectors(tmp_path / "x.safetensors")
    assert torch.equal(file[1].vectors, vectors[2:])


def test_a_tensor_per_page(tmp_path):
    tensors = {"b.pdf#2": torch.randn(3, 4).bfloat16(), "a.pdf#1": torch.randn(2, 4).bfloat16()}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    torch.save(tensors, tmp_path / "x.pt")
    np.savez(tmp_path / "x.npz", **{name: tensor.float().numpy() for name, tensor in tensors.items()})
    for name in ("x.safetensors", "x.pt", "x.npz"):
        file = open_vectors(tmp_path / name)
        assert {page.id: page.vectors.float().tolist() for page in file} == {
            key: tensor.float().tolist() for key, tensor in tensors.items()
        }
    assert open_vectors(tmp_path / "x.safetensors").metadata == {"format": "pt"}


def test_a_list_of_pages_has_no_ids(tmp_path):
    matrices = [torch.randn(3, 4), torch.randn(2, 4)]
    for content in (matrices, tuple(matrices)):
        torch.save(content, tmp_path / "x.pth")
        file = open_vectors(tmp_path / "x.pth")
        assert [page.id for page in file] == [None, None]
        assert torch.equal(file[1].vectors, matrices[1])


def test_torch_files_of_every_make(tmp_path):
    base = torch.randn(8, 6)
    content = {7: torch.nn.Parameter(base[:3, ::2]), "b": base[3:, 1:4].T[:, :3]}
    torch.save(content, tmp_path / "new.pt")
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("new.pt", "old.pt"):
        file = open_vectors(tmp_path / name)
        assert [page.id for page in file] == ["7", "b"]
        assert torch.equal(file[0].vectors, base[:3, ::2])
        assert torch.equal(file[1].vectors, base[3:, 1:4].T[:, :3])
        assert not file[0].vectors.requires_grad


def test_ids_as_strings_in_a_torch_file(tmp_path):
    content = {"vectors": torch.randn(4, 2), "offsets": torch.tensor([0, 1, 4], dtype=torch.int32), "ids": ["ä", "b"]}
    torch.save(content, tmp_path / "x.pt")
    assert [page.id for page in open_vectors(tmp_path / "x.pt")] == ["ä", "b"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_numpy_itself_reads_what_we_write(dtype, tmp_path):
    written = pages(dtype)
    save_vectors(tmp_path / "x.npz", written, metadata={"model": "ü"})
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert np.array_equal(found["vectors"], torch.cat([page.vectors for page in written]).numpy())
        assert found["offsets"].tolist() == [0, 2, 7, 11]
        assert json.loads(found["metadata"].item())["model"] == "ü"
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        assert archive.testzip() is None
    save_vectors(tmp_path / "folder", written)
    for number, page in enumerate(written):
        assert np.array_equal(np.load(tmp_path / "folder" / f"{number:06d}.npy"), page.vectors.numpy())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", ">f2"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compress", [False, True])
def test_arrays_numpy_wrote_in_any_layout(dtype, order, compress, tmp_path):
    rows = np.arange(21).reshape(7, 3)
    array = np.asarray(rows, dtype=dtype, order=order)
    (np.savez_compressed if compress else np.savez)(
        tmp_path / "x.npz", odd_name=0, vectors=array, offsets=np.array([0, 3, 7], ">i4")
    )
    file = open_vectors(tmp_path / "x.npz")
    assert file[1].vectors.tolist() == rows[3:].tolist()
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "b.npy", array)
    np.save(tmp_path / "folder" / "a.2.npy", array[:2])
    (tmp_path / "folder" / "README").write_text("not a page")
    folder = open_vectors(tmp_path / "folder")
    assert [page.id for page in folder] == ["a.2", "b"]
    assert folder.counts.tolist() == [2, 7]
    assert folder[1].vectors.tolist() == rows.tolist()


def test_bfloat16_in_npy_is_what_others_call_v2(tmp_path):
    written = pages(torch.bfloat16)
    save_vectors(tmp_path / "x.npz", written)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert found["vectors"].dtype == "V2"
        bits = found["vectors"].view(np.uint16).astype(np.uint32) << 16
    assert np.array_equal(bits.view(np.float32), torch.cat([page.vectors for page in written]).float().numpy())


def test_the_packed_data_of_an_archive_lies_on_64_bytes(tmp_path):
    save_vectors(tmp_path / "x.npz", pages())
    raw = (tmp_path / "x.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        for member in archive.infolist():
            if member.filename != "metadata.npy":
                data = archive.read(member)
                header = 10 + int.from_bytes(data[8:10], "little")
                start = raw.index(data, member.header_offset) + header
                assert start % 64 == 0, member.filename
