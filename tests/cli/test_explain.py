"""pagefacets explain as a user types it: the best hit, a page of one's own, every kind of file, and mistakes."""

import json

import pytest
from PIL import Image

import pagefacets as pf
from tests.pages.pdfs import Sheet, pdf, show
from tests.processes import command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An index with full vectors and one without, of a document of two pages."""
    folder = tmp_path_factory.mktemp("explain")
    texts = ["the giraffe and the zebra", "invoices and payments of the zoo"]
    (folder / "zoo.pdf").write_bytes(pdf([Sheet(show(text, 60, 600)) for text in texts]))
    pf.Index.build(folder / "zoo.pf", folder / "zoo.pdf", compressor=pf.compressor("ward", ratio=0.5), full=True)
    pf.Index.build(folder / "lean.pf", folder / "zoo.pdf")
    return folder


def test_the_best_hit_is_explained_as_a_table(folder):
    done = command(folder, "explain", "zoo.pf", "zebra payments")
    assert (done.returncode, done.stderr) == (0, "")
    title, scores, head, *rows = done.stdout.splitlines()
    index = pf.Index.open(folder / "zoo.pf")
    hit = index.search("zebra payments", k=1)[0]
    assert title == f"zoo.pdf, page {hit.number + 1} ({hit.page})"
    assert f"score {hit.score:.3f}" in scores
    assert head.split() == ["token", "facet", "stands", "for", "score", "full", "strongest", "place"]
    tokens = index.encoder.query_tokens("zebra payments")
    assert [row.split()[0] for row in rows] == tokens
    found = hit.explain()
    assert [row.split()[1] for row in rows] == [str(one.facet) for one in found.tokens]
    for row, i in zip(rows, range(len(tokens)), strict=True):
        place = [float(number) for number in row.split()[-4:]]
        assert place == pytest.approx(found.boxes(i)[0][:4], abs=6e-4)


def test_another_page_by_rank_or_by_id(folder):
    second = json.loads(command(folder, "explain", "zoo.pf", "zebra", "--rank", "2", "--json").stdout)
    assert second["page"] == pf.Index.open(folder / "zoo.pf").search("zebra", k=2)[1].page
    named = json.loads(command(folder, "explain", "zoo.pf", "zebra", "--page", second["page"], "--json").stdout)
    assert named == second
    assert named["image"] is True
    assert named["tokens"][0]["full"]["boxes"]


def test_files_of_every_kind(folder):
    done = command(folder, "explain", "zoo.pf", "zebra", "-o", "why.html")
    assert done.returncode == 0, done.stderr
    assert "written to why.html" in done.stdout
    assert (folder / "why.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    for view, panels in (("both", 2), ("full", 1)):
        done = command(folder, "explain", "zoo.pf", "zebra", "-o", f"{view}.png", "--view", view, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["page"] == "zoo.pdf#0"
        with Image.open(folder / f"{view}.png") as picture:
            assert round(picture.width / picture.height / (612 / 792)) == panels


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zoo.pf", "zebra", "--page", "zoo.pdf#9"), "no page 'zoo.pdf#9'"),
        (("zoo.pf", "zebra", "--page", "zoo.pdf#0", "--rank", "1"), "leave out one of them"),
        (("zoo.pf", "zebra", "--rank", "3"), "has 2 pages, so there is no hit 3"),
        (("zoo.pf", "zebra", "--rank", "0"), "--rank must be at least 1"),
        (("zoo.pf", "zebra", "--view", "full"), "add -o why.html"),
        (("lean.pf", "zebra", "--view", "full", "-o", "no.png"), "build the index with full vectors"),
        (("zoo.pf", "zebra", "--weights", "transport"), "ward has no transport plan"),
        (("zoo.pf", "zebra", "-o", "no.gif"), "end it in .html, .json, .png"),
        (("zoo.pf", ""), "no words to look for"),
        (("none.pf", "zebra"), "none.pf"),
    ],
)
def test_mistakes_are_one_sentence(folder, arguments, message):
    done = command(folder, "explain", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(folder.glob("no.*"))


def test_hostile_words_do_not_reach_the_terminal(folder):
    done = command(folder, "explain", "zoo.pf", "zebra \x1b[2J[bold]x[/bold]")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "[" in done.stdout
