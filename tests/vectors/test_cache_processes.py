"""Caches among processes: killed at any moment, several at once, and on a disk that is full."""

import random
import re
import shutil
import time
from collections import Counter

import pytest

from pagefacets.vectors.cache import Cache
from pagefacets.vectors.caching.shards import Shards
from tests.processes import context
from tests.vectors.hashed import encode_elsewhere, text_pages
from tests.vectors.test_cache import assert_holds, contents

PAGES = 26


@pytest.fixture
def start(tmp_path):
    (tmp_path / "docs").mkdir()
    for number in range(PAGES):
        (tmp_path / "docs" / f"p{number:02d}.txt").write_text(f"page {number} says {'very ' * (number % 5)}much")
    started = []

    def begin(name, first=PAGES, pause=0.01, **limits):
        arguments = (tmp_path, name, first, pause)
        process = context().Process(target=encode_elsewhere, args=arguments, kwargs=limits)
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join()


@pytest.fixture
def whole(tmp_path, start):
    """What a cache holds that nothing happened to."""
    done = start("whole", pause=0)
    done.join(60)
    assert said(tmp_path, "whole") == f"{PAGES} 0 0"
    (tmp_path / "cache").rename(tmp_path / "kept")
    return contents(tmp_path / "kept")


def said(root, name):
    return (root / f"{name}.said").read_text()


def journal(root, name):
    place = root / f"{name}.journal"
    return place.read_text().split() if place.exists() else []


def finished(root):
    shards = Shards(root / "cache" / "pages", root / "cache" / "locks")
    return {held.id for shard in shards.load() for held in shard.held}


def wait_for(what):
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_killed_again_and_again_it_ends_as_if_it_never_had_been(tmp_path, start, whole):
    draw = random.Random(0)
    for attempt in range(60):
        before = finished(tmp_path)
        process = start(f"a{attempt}", pause=0.03)
        process.join(draw.uniform(0.02, 0.2 + attempt / 50))
        process.kill()
        process.join()
        assert not before.intersection(journal(tmp_path, f"a{attempt}"))
        if process.exitcode == 0:
            break
    assert attempt >= 3
    assert contents(tmp_path / "cache") == whole


def test_whatever_it_was_about_to_do_when_it_died_the_next_run_mends_it(tmp_path, start):
    start("whole", first=10, pause=0).join(60)
    whole = contents((tmp_path / "cache").rename(tmp_path / "kept"))
    for steps in range(0, 400, 3):
        process = start(f"b{steps}", first=10, pause=0, steps=steps)
        process.join(60)
        before = finished(tmp_path)
        start(f"c{steps}", first=10, pause=0).join(60)
        assert contents(tmp_path / "cache") == whole
        assert not before.intersection(journal(tmp_path, f"c{steps}"))
        if process.exitcode == 0:
            break
        shutil.rmtree(tmp_path / "cache")
    assert process.exitcode == 0
    assert steps > 30


def test_two_at_once_share_the_pages(tmp_path, start, whole):
    both = [start("one", pause=0.03), start("two", pause=0.03)]
    for process in both:
        process.join(60)
    mine, other = journal(tmp_path, "one"), journal(tmp_path, "two")
    assert mine
    assert other
    assert Counter(mine + other) == Counter(page.id for page in text_pages(tmp_path / "docs"))
    for name, pages in (("one", mine), ("two", other)):
        encoded, kept, shared = map(int, said(tmp_path, name).split())
        assert encoded == len(pages)
        assert encoded + kept + shared == PAGES
    assert contents(tmp_path / "cache") == whole


def test_the_one_that_is_left_takes_over(tmp_path, start, whole):
    killed, left = start("killed", pause=0.05), start("left", pause=0.05)
    wait_for(lambda: len(journal(tmp_path, "killed")) > 5)
    killed.kill()
    left.join(60)
    assert left.exitcode == 0
    twice = set(journal(tmp_path, "killed")) & set(journal(tmp_path, "left"))
    assert len(twice) <= 8
    assert contents(tmp_path / "cache") == whole


def test_one_that_wants_something_else_waits(tmp_path, start):
    first = start("first", first=20, pause=0.02)
    wait_for(lambda: journal(tmp_path, "first"))
    second = start("second")
    first.join(60)
    second.join(60)
    assert said(tmp_path, "first") == "20 0 0"
    assert said(tmp_path, "second") == f"{PAGES - 20} 20 0"
    assert journal(tmp_path, "second") == [page.id for page in text_pages(tmp_path / "docs")][20:]
    assert_holds(tmp_path / "cache", text_pages(tmp_path / "docs"))


def test_a_full_disk_is_one_sentence_and_finished_shards_stay(tmp_path, start):
    (tmp_path / "docs" / "p09.txt").write_text("very " * 5000)
    start("full", largest=100_000).join(60)
    assert re.search(
        r"cache/pages cannot be written \(File too large\): .* finished shards stay", said(tmp_path, "full")
    )
    assert finished(tmp_path) == {f"p{number:02d}" for number in range(8)}
    assert not list((tmp_path / "cache" / "pages").glob(".*"))
    start("roomy").join(60)
    assert said(tmp_path, "roomy") == f"{PAGES - 8} 8 0"
    assert len(Cache.open(tmp_path / "cache")) == PAGES
