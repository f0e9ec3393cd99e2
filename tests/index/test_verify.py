"""verify finds damage: whatever bytes of a data file change, it says so or nothing that is stored has changed."""

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch

from pagefacets.errors import FileFormatError
from pagefacets.index.format import checksum, row_of
from pagefacets.index.reader import Reader
from pagefacets.index.writer import Writer
from tests.index.entries import build, entry, manifest

# Run apart from the tests, for what Lance does with a damaged file is not in our hands.
LOOKING = """
import json, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
from pagefacets.errors import PagefacetsError
from pagefacets.index.reader import Reader
for line in sys.stdin:
    path = Path(line.strip())
    try:
        reader = Reader(path)
        wrong = list(reader.verify())
        rows = sorted(map(repr, reader.table.to_table().to_pylist())) if not wrong else []
    except PagefacetsError as error:
        wrong, rows = [str(error)], []
    print(json.dumps([wrong, rows]), flush=True)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "x.pf"
    entries = [entry(f"p{i}", seed=i, source=f"doc {i}.pdf", root="/docs") for i in range(6)]
    build(path, entries, manifest(full=True))
    return path


@pytest.fixture
def path(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "x.pf"))


def test_a_whole_index_has_nothing_wrong(path):
    assert list(Reader(path).verify()) == []
    assert len(Reader(path).packed) == 6
    assert list(Reader(path).verify()) == []
    shutil.rmtree(path / "packed")
    assert list(Reader(path).verify()) == []


def looking():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([sys.executable, "-c", LOOKING], cwd=Path(__file__).parents[2], **pipes)


def with_one_bit_changed(path, file, times):
    """What a process of its own says of the index, so many times; None where that ended the process."""
    intact, draw, child = file.read_bytes(), random.Random(file.suffix), looking()
    try:
        for _ in range(times):
            spoilt = bytearray(intact)
            spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
            file.write_bytes(spoilt)
            child.stdin.write(f"{path}\n")
            child.stdin.flush()
            answer = child.stdout.readline()
            if answer:
                yield json.loads(answer)
            else:
                child.communicate()
                child = looking()
                yield None
    finally:
        child.communicate()
        file.write_bytes(intact)


def test_any_bit_of_any_file_of_an_index_is_found_before_lance_reads_it(path):
    with Writer.open(path) as writer:
        writer.put([entry("more", seed=9)])
        writer.delete(["p1"])
    folder = path / "pages.lance"
    newest = min((folder / "_versions").glob("*.manifest"))
    files = [*(folder / "data").iterdir(), *(folder / "_deletions").iterdir(), newest]
    assert len(files) == 4
    for file in files:
        for answer in with_one_bit_changed(path, file, 50):
            assert answer is not None, f"{file.name} ended the process"
            ((sentence,), _) = answer
            assert f"{path} is damaged: {file.relative_to(path)} has another checksum than when" in sentence
            assert "\n" not in sentence
    assert list(Reader(path).verify()) == []


def test_without_its_checksum_any_byte_of_a_data_file_that_matters_is_found(path, whole):
    (path / "checks.json").unlink()
    (file,) = (path / "pages.lance" / "data").iterdir()
    expected = sorted(map(repr, Reader(whole).table.to_table().to_pylist()))
    answers = [answer for answer in with_one_bit_changed(path, file, 100) if answer is not None]
    assert all(wrong or rows == expected for wrong, rows in answers)
    assert sum(bool(wrong) for wrong, _ in answers) > 50
    # Some lengths in a file make Lance ask for more memory than there is, which ends its process.
    assert len(answers) >= 97


def test_what_lies_in_other_files_is_looked_at_as_well(path):
    with Writer.open(path) as writer:
        first = set((path / "pages.lance" / "data").iterdir())
        writer.put([entry("more", seed=9)])
    for file in first:
        raw = bytearray(file.read_bytes())
        raw[100] ^= 1
        file.write_bytes(raw)
    lance.dataset(str(path / "pages.lance")).update({"number": "7"}, where="id = 'more'")
    file_sentence, page_sentence = Reader(path).verify()
    assert f"{path} is damaged: pages.lance/data/" in file_sentence
    assert "page 'more' is damaged (its checksum differs)" in page_sentence


@pytest.mark.parametrize("how", ["truncated", "emptied", "removed", "zeroed"])
def test_a_spoilt_data_file_is_found_and_refused_with_one_sentence(path, how):
    (file,) = (path / "pages.lance" / "data").iterdir()
    if how == "truncated":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif how == "emptied":
        file.write_bytes(b"")
    elif how == "removed":
        file.unlink()
    else:
        file.write_bytes(bytes(file.stat().st_size))
    (sentence,) = Reader(path).verify()
    assert f"{path} is damaged" in sentence
    assert "\n" not in sentence
    with pytest.raises(FileFormatError, match=re.escape(f"{path} is damaged")):
        _ = Reader(path).packed
    with pytest.raises(FileFormatError, match=re.escape(f"{path} is damaged")):
        Writer.open(path)


def rewrite(path, change):
    """Change the rows of an index behind its back, as another program or a faulty disk would."""
    table = lance.dataset(str(path / "pages.lance"))
    rows = [change(row) for row in table.to_table().to_pylist()]
    rows = [one for row in rows for one in (row if isinstance(row, list) else [row])]
    lance.write_dataset(pa.Table.from_pylist(rows, schema=table.schema), table.uri, mode="overwrite")


def only(page, **values):
    """Change some values of one page, with a check that fits them where `check` is among them."""

    def change(row):
        if row["id"] != page:
            return row
        row = row | {name: value(row) if callable(value) else value for name, value in values.items()}
        return row | {"check": checksum(row)} if values.get("check", 0) is None else row

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (only("p2", source="other.pdf"), "page 'p2' is damaged (its checksum differs)"),
        (only("p2", number=7), "page 'p2' is damaged (its checksum differs)"),
        (only("p2", demand=None), "page 'p2' is damaged (its checksum differs)"),
        (only("p2", facets=lambda row: row["facets"][::-1]), "page 'p2' is damaged (its checksum differs)"),
        (only("p2", boxes=lambda row: row["boxes"][:-1] + b"\7"), "page 'p2' is damaged (its checksum differs)"),
        (only("p2", k=4, check=None), "page 'p2' is damaged (its arrays do not fit k=4 and n=12)"),
        (only("p2", n=11, check=None), "page 'p2' is damaged (its arrays do not fit k=3 and n=11)"),
        (only("p2", vectors=lambda row: row["vectors"][2:] + b"\0\0"), "page 'p2': the full vectors are damaged"),
        (only("p2", vectors=b""), "page 'p2': the full vectors are damaged"),
        (
            only("p2", assignment=np.full(12, 3, np.int32).tobytes(), check=None),
            "page 'p2' is damaged (a facet is named that it has not)",
        ),
        (
            only("p2", facets=np.full((3, 16), 0.5, np.float16).tobytes(), check=None),
            "page 'p2' has a facet whose length is not 1",
        ),
        (lambda row: [row, row] if row["id"] == "p2" else row, "page 'p2' is there twice"),
    ],
)
def test_each_kind_of_damage_has_its_sentence(path, change, sentence):
    rewrite(path, change)
    said, *_ = Reader(path).verify()
    assert sentence in said
    assert said.endswith("again")


def test_damage_to_one_page_leaves_the_others_readable(path):
    rewrite(path, only("p2", facets=lambda row: row["facets"][::-1]))
    reader = Reader(path)
    with pytest.raises(FileFormatError, match=r"page 'p2' is damaged .* delete the page and add its document again"):
        reader.facets("p2")
    assert reader.facets("p3").k == 3


def test_a_derived_file_that_differs_is_found(path):
    assert len(Reader(path).packed) == 6
    (file,) = (path / "packed").iterdir()
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    (sentence,) = Reader(path).verify()
    assert "packed does not hold the facets of the table: delete that folder" in sentence
    shutil.rmtree(path / "packed")
    assert list(Reader(path).verify()) == []


def test_the_pages_that_verify_calls_whole_are_the_ones_put(path):
    reader = Reader(path)
    for i in range(6):
        again = row_of(entry(f"p{i}", seed=i, source=f"doc {i}.pdf", root="/docs"), reader.manifest)
        assert again["check"] == reader.table.to_table(columns=["check"], filter=f"id = 'p{i}'")["check"][0].as_py()
    assert torch.equal(reader.facets("p0").vectors, entry("p0", seed=0).facets.vectors.half().float())
