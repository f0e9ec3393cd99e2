"""What docs/reproducing.md says of checkpoints and prompts is what the code does."""

from pathlib import Path

import pytest

from pagefacets.vectors.checkpoints import CHECKPOINTS, FAMILIES, family_of
from pagefacets.vectors.compact import AGC, METAEMBED
from pagefacets.vectors.single import RECIPES

PAGE = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text(encoding="utf-8")
ROWS = [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in PAGE.splitlines() if "| `" in row]


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if not name.startswith(("vidore", "nomic"))])
def test_a_checkpoint_is_named_with_its_family(name):
    families = {row[2] for row in ROWS if len(row) > 2 and row[1] == name}
    assert CHECKPOINTS[name] in families
    assert families <= FAMILIES.keys()
    assert family_of(name) == CHECKPOINTS[name]


def test_the_prompts_are_those_in_use():
    told, families = {}, []
    for line in PAGE.partition("```text\n")[2].partition("```")[0].splitlines():
        if line.startswith(" "):
            side, prompt = line.split(None, 1)
            told |= {(family, side): prompt for family in families}
        else:
            families = line.split(", ")
    used = {family: recipe.prompts for family, recipe in RECIPES.items()} | {"agc": AGC, "metaembed": METAEMBED}
    assert {family for family, _ in told} == used.keys()
    for (family, side), prompt in told.items():
        assert getattr(used[family], side).replace("\n", "\\n") == prompt
