"""Indexes among processes: killed at any moment of any change, stopped by Ctrl-C, and written by two at once."""

import functools
import json
import os
import random
import shutil
import signal
import sys
import time

import pytest

import pagefacets as pf
from pagefacets.errors import InputError
from pagefacets.index.checks import files_of, manifest_file
from pagefacets.index.reader import Reader, is_index
from pagefacets.vectors import encoder as encoders
from tests.processes import context
from tests.vectors.hashed import HashedEncoder

WORDS = ("plant", "sales", "chart", "region", "cost", "income", "share", "debt", "lease", "crew", "risk", "court")
WARD = pf.compressor("ward", ratio=0.25)


@pytest.fixture(autouse=True)
def hashed(monkeypatch):
    monkeypatch.setitem(encoders.ENCODERS, "hashed", "tests.vectors.hashed:HashedEncoder")


def slow(**options):
    """The encoder of the killed process: a hundredth of a second for a page."""
    return HashedEncoder(pause=0.01, **options)


def telling(told):
    """Say when the work on an index begins, and when nothing is left of it but to release the lock."""
    from pagefacets.index.writer import Writer

    def begin(act, *arguments):
        told.send_bytes(b"begun")
        return act(*arguments)

    def end(self, *error, leave=Writer.__exit__):
        told.send_bytes(b"ended")
        leave(self, *error)

    Writer.create, Writer.open = functools.partial(begin, Writer.create), functools.partial(begin, Writer.open)
    Writer.__exit__ = end


def typed(folder, arguments, told=None):
    """What a process does: one verb of the command line, with commits of few pages, so that a kill strikes between."""
    from pagefacets import update
    from pagefacets.cli.main import main
    from pagefacets.index import writer

    update.PAGES, writer._PIECES = 3, 3
    encoders.ENCODERS["hashed"] = "tests.index.test_processes:slow"
    output = os.open(folder / "out.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(folder)
    sys.argv = ["pagefacets", *arguments]
    if told is not None:
        telling(told)
    main()


def start(folder, *arguments, told=None):
    process = context().Process(target=typed, args=(folder, [str(one) for one in arguments], told))
    process.start()
    return process


def run(folder, *arguments):
    """The verb, left alone."""
    process = start(folder, *arguments)
    process.join(60)
    assert process.exitcode == 0, (folder / "out.txt").read_text()


def struck(folder, *arguments, after):
    """Kill the verb so many seconds into its work on the index; returns whether it still worked, and for how long."""
    hearing, telling = context().Pipe(duplex=False)
    with hearing:
        with telling:
            process = start(folder, *arguments, told=telling)
        assert hearing.poll(60), (folder / "out.txt").read_text()
        assert hearing.recv_bytes() == b"begun"
        begun = time.monotonic()
        over = hearing.poll(after)
        took = time.monotonic() - begun
        if not over:
            process.kill()
        process.join(60)
        # What it said before the kill reached it is still to be heard.
        alive = _end_of(hearing)
    if alive:
        assert process.exitcode == -signal.SIGKILL, (folder / "out.txt").read_text()
    return alive, took


def _end_of(hearing):
    """Whether a process that is gone never said that it ended."""
    try:
        return hearing.recv_bytes() != b"ended"
    except EOFError:
        return True


def write(folder, name, numbers, *, edition=0):
    """A dataset of short pages; another edition has other words on every third."""
    folder.mkdir(exist_ok=True)
    lines = []
    for i in numbers:
        drawn = random.Random(i + 1000 * (edition if i % 3 == 0 else 0))
        lines.append(json.dumps({"id": f"{name}{i}", "text": " ".join(drawn.choices(WORDS, k=5 + i % 7))}))
    (folder / "pages.jsonl").write_text("\n".join(lines) + "\n")


def wanted(*folders):
    """What an index of these datasets has to hold: id, digest and facets of each page, without any index."""
    found = {}
    for folder in folders:
        for page in pf.open_pages(folder):
            (vectors,) = HashedEncoder().encode_pages([page])
            found[page.id] = (page.digest, WARD.compress(vectors).vectors.half().numpy().tobytes())
    return found


def contents(path):
    """The same, of an index, once it has been found whole."""
    index = pf.Index.open(path)
    assert index.verify() == []
    listing = index.reader.listing
    assert len(set(listing.ids)) == len(listing) == len(index)
    return {
        name: (listing.digests[i], index.reader.facets(name).vectors.half().numpy().tobytes())
        for i, name in enumerate(listing.ids)
    }


def assert_all_noted(path):
    """The checks of an index name every file of its newest version."""
    table = Reader(path).table
    files = {name for names in files_of(table).values() for name in names}
    noted = json.loads((path / "checks.json").read_text())["files"]
    assert set(noted) == files | {manifest_file(path / "pages.lance")}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Datasets and the index of the first of them, with a few versions behind it."""
    folder = tmp_path_factory.mktemp("base")
    write(folder / "docs", "p", range(24))
    write(folder / "more", "q", range(18))
    run(folder, "index", "docs", "-o", "x.pf", "--model", "hashed", "-q")
    return folder


INDEX = ("index", "docs", "-o", "x.pf", "--model", "hashed", "-q")
VERBS = {
    "index anew": INDEX,
    "index again": INDEX,
    "add": ("add", "x.pf", "more", "-q"),
    "delete": ("delete", "x.pf", "--page", "p7"),
    "compact": ("compact", "x.pf"),
    "compact now": ("compact", "x.pf", "--now"),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_any_moment_it_is_whole_and_a_rerun_ends_where_it_should(base, tmp_path, verb):
    """Five kills of each verb, all in the midst of its work; after each the index verifies, and a rerun ends it."""
    arguments, begun, folder = VERBS[verb], tmp_path / "begun", tmp_path / "here"
    shutil.copytree(base, begun)
    if verb == "index anew":
        shutil.rmtree(begun / "x.pf")
    if verb == "index again":
        write(begun / "docs", "p", range(4, 30), edition=1)
    if verb.startswith("compact"):
        pf.Index.open(begun / "x.pf").delete(page="p5")
    before = {} if verb == "index anew" else contents(begun / "x.pf")
    after = wanted(begun / "docs", *([begun / "more"] if verb == "add" else []))
    for gone in {"delete": ["p7"], "compact": ["p5"], "compact now": ["p5"]}.get(verb, []):
        del after[gone]
    shutil.copytree(begun, folder)
    alive, takes = struck(folder, *arguments, after=60)
    assert not alive
    assert contents(folder / "x.pf") == after
    draw = random.Random(verb)
    for moment in range(5):
        delay = takes * draw.uniform(moment, moment + 1) / 5
        for _ in range(20):
            shutil.rmtree(folder)
            shutil.copytree(begun, folder)
            alive, _ = struck(folder, *arguments, after=delay)
            if alive:
                break
            # It was faster this time, and no kill counts that comes after the work.
            delay = draw.uniform(0, delay)
        assert alive, "twenty times it had ended before the kill"
        if is_index(folder / "x.pf"):
            for name, held in contents(folder / "x.pf").items():
                assert held in (before.get(name), after.get(name))
        if not (verb == "delete" and "p7" not in contents(folder / "x.pf")):
            run(folder, *arguments)
            assert_all_noted(folder / "x.pf")
        assert contents(folder / "x.pf") == after


def test_ctrl_c_leaves_a_whole_index_and_one_line(tmp_path):
    write(tmp_path / "docs", "p", range(200))
    process = start(tmp_path, *INDEX)
    deadline = time.monotonic() + 60
    while not is_index(tmp_path / "x.pf") or len(pf.Index.open(tmp_path / "x.pf")) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    assert (tmp_path / "out.txt").read_text() == "pagefacets: stopped; nothing half-written was left behind\n"
    everything = wanted(tmp_path / "docs")
    held = contents(tmp_path / "x.pf")
    assert 6 <= len(held) < 200
    assert held.items() <= everything.items()
    write(tmp_path / "docs", "p", range(len(held) + 4))
    run(tmp_path, *INDEX)
    assert contents(tmp_path / "x.pf") == wanted(tmp_path / "docs")


def test_a_second_writer_is_told_so_and_searching_goes_on(tmp_path):
    write(tmp_path / "docs", "p", range(100))
    process = start(tmp_path, *INDEX)
    deadline = time.monotonic() + 60
    while not is_index(tmp_path / "x.pf") or len(pf.Index.open(tmp_path / "x.pf")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    index = pf.Index.open(tmp_path / "x.pf")
    expected, pages = index.search("plant risk", k=50), len(index)
    for act in (lambda: index.add(tmp_path / "docs"), lambda: index.delete(page="p0"), index.compact):
        with pytest.raises(InputError, match="is being written by another process: wait until it is done"):
            act()
    asked = 0
    while process.is_alive():
        assert index.search("plant risk", k=50) == expected
        assert len(pf.Index.open(tmp_path / "x.pf").search("plant risk", k=100)) >= pages
        asked += 1
    process.join()
    assert process.exitcode == 0
    assert asked > 3
    assert len(index.refresh()) == 100
