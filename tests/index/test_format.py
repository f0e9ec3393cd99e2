"""The norm: an index read by docs/index-format.md alone, and what is refused."""

import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import lance
import numpy as np
import pytest
import torch

import pagefacets as pf
from pagefacets.errors import FileFormatError, InputError
from pagefacets.index.format import Manifest, schema
from pagefacets.index.reader import Reader
from pagefacets.vectors.caching.manifest import EncoderNote
from tests.index.entries import build, entry, manifest

NORM = Path(__file__).parents[2] / "docs" / "index-format.md"

# Written from the norm; run where pagefacets cannot be imported.
READER = r"""
import sys
sys.modules["pagefacets"] = None
import json, struct, zlib
import lance, numpy as np

table = lance.dataset(sys.argv[1] + "/pages.lance")
text = table.schema.metadata[b"pagefacets.index"]
assert int(table.schema.metadata[b"pagefacets.index.crc32"]) == zlib.crc32(text)
manifest = json.loads(text)
assert manifest["format"] == 1
p = manifest["encoder"]["dim"]

def facets(raw, k):
    kind = manifest["dtype"]
    if kind in ("float32", "float16"):
        return np.frombuffer(raw, "<f4" if kind == "float32" else "<f2").reshape(k, p).astype(np.float32)
    rows = np.frombuffer(raw, np.uint8).reshape(k, -1)
    if kind == "int8":
        scale = np.frombuffer(rows[:, p:].tobytes(), "<f4")[:, None]
        return rows[:, :p].view(np.int8) * scale
    bits = np.unpackbits(rows, axis=1)[:, :p]
    return (2.0 * bits - 1.0) / np.sqrt(p)

def check(row):
    crc = 0
    for name, kind in (
        ("id", "s"), ("source", "s"), ("number", "i"), ("width", "f"), ("height", "f"), ("digest", "s"), ("n", "i"),
        ("k", "i"), ("offset", "f"), ("facets", "b"), ("assignment", "b"), ("demand", "b"), ("columns", "i"),
        ("rows", "i"), ("image_mask", "b"), ("boxes", "b"),
    ):
        value = row[name]
        if value is None:
            crc = zlib.crc32(b"\x00", crc)
            continue
        raw = {"s": lambda: value.encode(), "b": lambda: value, "i": lambda: struct.pack("<q", value),
               "f": lambda: struct.pack("<f", value)}[kind]()
        crc = zlib.crc32(b"\x01" + raw, crc)
    return crc

with open(sys.argv[1] + "/checks.json") as stream:
    checks = json.load(stream)
said = ""
for name, (size, crc) in sorted(checks["files"].items()):
    with open(sys.argv[1] + "/pages.lance/" + name, "rb") as stream:
        raw = stream.read()
    assert (len(raw), zlib.crc32(raw)) == (size, crc)
    said += f"{name} {size} {crc}\n"
assert zlib.crc32(said.encode()) == checks["check"]
kinds = sorted(name.split("/")[0] for name in checks["files"])
assert kinds == ["_versions"] + ["data"] * len(table.get_fragments())

query = np.load(sys.argv[2])
ranked, pages = [], {}
for row in table.to_table().to_pylist():
    assert check(row) == row["check"]
    n, k = row["n"], row["k"]
    rows = facets(row["facets"], k)
    score = float((query @ rows.T).max(1).sum() + len(query) * (row["offset"] or 0.0))
    ranked.append((score, row["id"].encode()))
    page = {name: row[name] for name in ("root", "source", "number", "width", "height", "digest", "columns", "rows")}
    page["facets"] = rows.tolist()
    page["assignment"] = np.frombuffer(row["assignment"], "<i4").tolist()
    weights = None if row["demand"] is None else np.frombuffer(row["demand"], "<f2").astype(np.float64)
    page["demand"] = None if weights is None else (weights / weights.sum()).tolist()
    mask, boxes = row["image_mask"], row["boxes"]
    page["image_mask"] = None if mask is None else np.frombuffer(mask, np.uint8).tolist()
    page["boxes"] = None if boxes is None else np.frombuffer(boxes, "<f2").reshape(n, 4).tolist()
    if manifest["full"]:
        assert zlib.crc32(row["vectors"]) == row["vectors_check"]
        page["vectors"] = np.frombuffer(row["vectors"], "<f2").reshape(n, p).tolist()
    pages[row["id"]] = page
ranked.sort(reverse=True)
print(json.dumps({"manifest": manifest, "pages": pages, "ranked": [name.decode() for _, name in ranked]}))
"""


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "binary"])
def test_an_index_is_read_by_the_norm_alone(dtype, tmp_path):
    dim = 20
    entries = [
        entry("a#0", seed=0, dim=dim, root="/docs"),
        entry("a#1", seed=1, dim=dim, number=1, k=5, offset=0.25),
        entry("é", seed=2, dim=dim, bare=True, k=1, n=7),
        entry("f", seed=0, dim=dim, source="b.pdf"),
    ]
    about = manifest(dim=dim, dtype=dtype, full=True, pool_sha256="0" * 64)
    build(tmp_path / "x.pf", entries, about, commits=2)
    query = torch.randn(4, dim, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "query.npy", query.numpy())
    done = subprocess.run(
        [sys.executable, "-c", READER, tmp_path / "x.pf", tmp_path / "query.npy"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert read["manifest"]["encoder"] == {
        "id": "hashed",
        "dim": dim,
        "query_prefix": "ask: ",
        "config": {"name": "hashed", "salt": "", "p": dim},
    }
    assert read["manifest"]["compressor"] == {"name": "ward", "ratio": 0.25}
    assert read["manifest"]["pool_sha256"] == "0" * 64
    tolerance = {"float32": 1e-7, "float16": 1e-3, "int8": 0.005, "binary": 1.0}[dtype]
    for one in entries:
        page = read["pages"][one.id]
        np.testing.assert_allclose(page["facets"], one.facets.vectors, atol=tolerance)
        assert page["assignment"] == one.facets.assignment.tolist()
        np.testing.assert_allclose(page["vectors"], one.vectors.vectors, atol=1e-3)
        assert (page["root"], page["source"], page["number"]) == (one.root, one.source, one.number)
        if one.id == "é":
            assert all(page[name] is None for name in ("width", "columns", "demand", "image_mask", "boxes"))
        else:
            np.testing.assert_allclose(page["demand"], one.facets.demand, atol=1e-3)
            np.testing.assert_allclose(page["boxes"], one.vectors.boxes, atol=1e-3)
            assert page["image_mask"] == one.vectors.image_mask.tolist()
            assert (page["columns"], page["rows"]) == one.vectors.grid
            assert (page["width"], page["height"]) == one.size
    hits = pf.Index.open(tmp_path / "x.pf").search(query, k=10)
    assert [hit.page for hit in hits] == read["ranked"]


def test_the_norm_names_every_column_and_entry():
    text = NORM.read_text()
    named = set(re.findall(r"`(\w+)`", text))
    assert {field.name for field in schema(manifest(full=True))} <= named
    assert set(json.loads(manifest().to_json())) <= named
    covered = re.search(r"from 0\) over (.*?), in this order", text, re.DOTALL)[1]
    assert "in this order. A null" in text.replace("\n", " ")
    names = re.findall(r"`(\w+)`", covered)
    assert set(names) == {field.name for field in schema(manifest())} - {"root", "check"}


def rewritten(path, change):
    """The table at `path` with other metadata."""
    table = lance.dataset(str(path / "pages.lance"))
    kept = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    changed = change(json.loads(kept["pagefacets.index"]))
    text = changed if isinstance(changed, str) else json.dumps(changed)
    kept |= {"pagefacets.index": text, "pagefacets.index.crc32": str(zlib.crc32(text.encode()))}
    table.update_schema_metadata(kept, replace=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda read: read | {"format": 2}, "has version 2 of the index format and this pagefacets reads up to 1"),
        (lambda read: {"format": 7}, "has version 7 of the index format"),
        (lambda read: read | {"format": "x"}, "has version x of the index format"),
        (lambda read: read | {"dtype": "float8"}, "the manifest is damaged"),
        (lambda read: {key: value for key, value in read.items() if key != "encoder"}, "the manifest is damaged"),
        (lambda read: json.dumps(read)[:-3], "the manifest is damaged"),
        (lambda read: "[]", "the manifest is damaged"),
    ],
)
def test_a_newer_format_and_a_damaged_manifest_are_refused_with_one_sentence(change, sentence, tmp_path):
    build(tmp_path / "x.pf", [entry("a", seed=0)])
    rewritten(tmp_path / "x.pf", change)
    with pytest.raises(FileFormatError, match=re.escape(sentence)) as refused:
        pf.Index.open(tmp_path / "x.pf")
    assert str(tmp_path / "x.pf") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_manifest_whose_checksum_differs_is_refused(tmp_path):
    build(tmp_path / "x.pf", [entry("a", seed=0)])
    table = lance.dataset(str(tmp_path / "x.pf" / "pages.lance"))
    kept = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    kept["pagefacets.index"] = kept["pagefacets.index"].replace("ask: ", "asc: ")
    table.update_schema_metadata(kept, replace=True)
    with pytest.raises(FileFormatError, match="the manifest is damaged"):
        Reader(tmp_path / "x.pf")


def test_entries_that_a_reader_does_not_know_are_ignored(tmp_path):
    build(tmp_path / "x.pf", [entry("a", seed=0)])
    rewritten(tmp_path / "x.pf", lambda read: read | {"mood": "good"})
    assert len(pf.Index.open(tmp_path / "x.pf")) == 1


def test_the_manifest_comes_back_equal():
    about = Manifest(
        EncoderNote("é-model", 7, "query: ", {"name": "é-model", "revision": None, "layers": [1, 2]}),
        {"name": "magic", "ratio": 0.05, "budget": None},
        dtype="int8",
        full=True,
        pool_sha256="ab",
    )
    kept = {key.encode(): value.encode() for key, value in about.to_metadata().items()}
    assert Manifest.from_metadata(kept, "x.pf") == about


def test_other_tables_and_other_folders_are_refused(tmp_path):
    pf.save_vectors(tmp_path / "v.lance", [pf.PageVectors([[1.0, 0.0]])])
    (tmp_path / "x.pf").mkdir()
    (tmp_path / "v.lance").rename(tmp_path / "x.pf" / "pages.lance")
    with pytest.raises(FileFormatError, match="is a Lance table but no index of pagefacets"):
        pf.Index.open(tmp_path / "x.pf")
    with pytest.raises(InputError, match=r"does not exist: build one with 'pagefacets index SOURCE -o none\.pf'"):
        pf.Index.open(tmp_path / "none.pf")
    (tmp_path / "empty.pf").mkdir()
    with pytest.raises(InputError, match="holds no whole index"):
        pf.Index.open(tmp_path / "empty.pf")


@pytest.mark.parametrize("spoil", [torch.nan, torch.inf])
def test_a_facet_that_is_not_finite_is_not_written(spoil, tmp_path):
    rows = torch.nn.functional.normalize(torch.ones(2, 16), dim=1)
    rows[1, 3] = spoil
    with pytest.raises(InputError, match="page 'a' has a facet that is NaN or infinite"):
        build(tmp_path / "x.pf", [entry("a", seed=0, facets=rows)])


def test_vectors_of_another_dimension_are_not_written(tmp_path):
    with pytest.raises(InputError, match="page 'a' has vectors of dimension 8 and the index 16"):
        build(tmp_path / "x.pf", [entry("a", seed=0, dim=8)])


def test_the_check_notices_every_value_and_what_is_null(tmp_path):
    from pagefacets.index.format import checksum, row_of

    row = row_of(entry("a", seed=0, offset=0.5), manifest())
    first = checksum(row)
    for name in set(row) - {"root", "check"}:
        assert checksum(row | {name: None}) != first, name
        changed = row[name] + (b"\0" if isinstance(row[name], bytes) else "x" if isinstance(row[name], str) else 1)
        assert checksum(row | {name: changed}) != first, name
    assert checksum(row | {"root": "elsewhere"}) == first
    assert struct.pack("<q", first) == struct.pack("<q", first & 0xFFFFFFFF)
