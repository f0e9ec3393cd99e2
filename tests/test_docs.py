"""The documentation's programs, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

DOCS = Path(__file__).parents[1] / "docs"


def programs(page):
    """The Python blocks of a page whose first line names a file, by that name."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    return dict(blocks)


def test_every_page_is_in_the_contents_once():
    contents = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text())["nav"]
    listed = [page for entry in contents for page in entry.values()]
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_a_method_of_ones_own_works_as_written(tmp_path):
    written = programs("extending.md")
    assert set(written) == {"strided.py", "compare_strided.py"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "compare_strided.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (name, k, strided), (_, _, ward) = (line.split() for line in done.stdout.splitlines())
    assert (name, k) == ("strided", "10")
    assert 0 < float(ward) < float(strided) < 1


def test_a_class_in_the_callers_own_script_reaches_the_workers(tmp_path):
    written = programs("extending.md")
    (tmp_path / "alone.py").write_text(
        written["strided.py"]
        + """
import time
import numpy as np
pages = (np.random.default_rng(i).standard_normal((60, 16), dtype=np.float32) for i in range(3000))
results = Strided(budget=4).compress_many(pages, workers=2)
first = next(results).k
time.sleep(4)  # by now the workers have started, and do the rest
print(first + sum(facets.k for facets in results))
"""
    )
    done = subprocess.run([sys.executable, tmp_path / "alone.py"], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "12000", done.stderr
