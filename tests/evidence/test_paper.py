"""The paper's numbers, checked by the arithmetic that they obey: a slip of the pen in one of them shows."""

import itertools
import re
from pathlib import Path

import pytest

from pagefacets.errors import InputError
from pagefacets.evidence.paper import ARTIFACTS, Place, artifact
from pagefacets.evidence.recipes import RECIPES
from pagefacets.evidence.suites import SUITES

SIX = ("ArxivQ", "DocQ", "InfoQ", "TabF", "TATQ", "Shift")


def value(name, *place):
    return artifact(name).numbers[Place(*place)].value


@pytest.mark.parametrize("name", ["table1", "single-vector"])
def test_every_average_is_the_mean_of_its_row(name):
    found = artifact(name)
    rows = {place._replace(column="Avg.") for place in found.numbers}
    for row in rows:
        mean = sum(found.numbers[row._replace(column=one)].value for one in SIX) / 6
        assert found.numbers[row].value == pytest.approx(mean, abs=0.0084), row


def test_every_recall_of_singly_judged_queries_is_possible_but_one():
    """A set of n queries with one relevant page each has its Recall@5 at multiples of 100/n."""
    impossible = []
    for place, printed in artifact("table1").numbers.items():
        queries = {task.name: task.queries for task in SUITES["vidore-v1"].tasks}.get(place.column)
        if place.measure == "recall@5" and place.column in ("ArxivQ", "TabF", "Shift"):
            found = round(printed.value * queries / 100)
            if abs(100 * found / queries - printed.value) > 0.0051:
                impossible.append((place, printed))
    ((place, printed),) = impossible
    assert place == Place("r = 0.01", "MAGIC", "TabF", "recall@5")
    assert printed.value == 89.02
    assert any("89.02" in note for note in printed.notes)


def test_claims_of_the_text_hold_of_the_tables():
    def lead(ratio, over, measure):
        place = f"r = {ratio}", "Avg.", measure
        return round(value("table1", place[0], "MAGIC", *place[1:]) - value("table1", place[0], over, *place[1:]), 2)

    assert [lead(0.01, "ColChunk", measure) for measure in ("ndcg@5", "recall@5")] == [0.95, 1.79]
    assert [lead(0.01, "Light-ColPali", measure) for measure in ("ndcg@5", "recall@5")] == [2.70, 2.87]
    block = "64 vectors a page"
    ahead = [
        value("learned", block, "MAGIC", column, "ndcg@5") > value("learned", block, "AGC", column, "ndcg@5")
        for column in artifact("learned").columns
    ]
    assert sum(ahead) == 6
    block = "1536 numbers a page"
    assert value("single-vector", block, "MAGIC", "Avg.", "ndcg@5") - value(
        "single-vector", block, "VLM2Vec-V2", "Avg.", "ndcg@5"
    ) == pytest.approx(5.08)
    # In Table 2 the whole method leads at every ratio, and less is kept from left to right.
    for column in artifact("table2").columns:
        rows = [value("table2", "average of six", row, column, "ndcg@5") for row in ("MAGIC", "w/o source")]
        rows += [value("table2", "average of six", row, column, "ndcg@5") for row in ("w/o target", "w/o Lloyd")]
        assert rows[0] == max(rows)
    for row in ("MAGIC", "w/o source", "w/o target", "w/o Lloyd"):
        line = [value("table2", "average of six", row, column, "ndcg@5") for column in artifact("table2").columns]
        assert line == sorted(line, reverse=True)


def test_one_number_stands_in_several_places_with_the_same_value():
    row = "ColQwen2.5"
    for column in (*SIX, "Avg."):
        assert value("table1", "all vectors", row, column, "ndcg@5") == value(
            "single-vector", "all vectors", row, column, "ndcg@5"
        )
    for place, printed in artifact("figure3").numbers.items():
        of_table2 = value("table2", "average of six", "MAGIC", place.column, "ndcg@5")
        if place.row == "MAGIC":
            assert printed.value == of_table2
        else:
            assert printed.value == value("table1", f"r = {place.column}", place.row, "Avg.", "ndcg@5")
    for name in ("figure5", "figure6", "figure9"):
        for place, printed in artifact(name).numbers.items():
            ratio = place.column.removeprefix("r = ")
            assert printed.value == value("table2", "average of six", "MAGIC", ratio, "ndcg@5")


def test_sizes_of_table3_are_those_of_the_vectors_that_the_notes_name():
    block, size = "ViDoRe v1 - ColQwen2.5", "MB per 1,000 pages"
    kept = {
        ("ColQwen2.5", "r = 0.1"): 743.5,
        ("DocPruner", "r = 0.1"): 84.73,
        ("DocPruner", "r = 0.01"): 18.93,
        ("Light-ColPali", "r = 0.1"): 73.81,
        ("Light-ColPali", "r = 0.01"): 6.91,
        ("MAGIC", "r = 0.1"): 74.69,
        ("MAGIC", "r = 0.01"): 7.54,
    }
    for (row, column), vectors in kept.items():
        assert value("table3", block, row, column, size) == pytest.approx(vectors * 128 * 4 / 1000, abs=0.006)


def test_both_oddities_are_told_where_they_stand():
    for name, block, column in (("table1", "r = 0.01", "Avg."), ("table2", "average of six", "0.01")):
        printed = artifact(name).numbers[Place(block, "MAGIC", column, "ndcg@5")]
        assert any("70.71" in note or "71.04" in note for note in printed.notes)
    assert not artifact("table1").numbers[Place("r = 0.1", "MAGIC", "Avg.", "ndcg@5")].notes


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_printed_number_has_a_setting_that_makes_it(name):
    made = {
        (cell.block, cell.row, cell.column, measure)
        for panel in RECIPES[name]()
        for cell, measure in itertools.product(panel.cells.values(), panel.measures)
    }
    for place in artifact(name).numbers:
        assert place in made or place._replace(column=None) in made


def test_the_docs_list_the_data_sets_as_the_code_knows_them():
    page = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    rows = {row[1].strip("`"): row for row in lines if len(row) == 6}
    for suite in SUITES.values():
        for task in suite.tasks:
            if task.pages is not None:
                _, _, mteb, pages, queries, judged = rows[task.hub]
                assert mteb.strip("`") == (task.mteb or "")
                assert int(pages.replace(",", "")) == task.pages
                assert int(re.match(r"[\d,]+", queries)[0].replace(",", "")) == task.queries
                assert ("language" in queries) == (task.languages > 1)
                if task.judged is not None:
                    assert int(re.match(r"[\d,]+", judged)[0].replace(",", "")) == task.judged


def test_an_unknown_name_is_one_sentence():
    with pytest.raises(InputError, match="there is no 'table9' to reproduce: choose from table1, table2"):
        artifact("table9")
    assert all(artifact(name).numbers for name in ARTIFACTS)
