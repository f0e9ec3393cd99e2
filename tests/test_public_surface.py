"""What `import pagefacets` offers and what it costs."""

import importlib
import pkgutil
import subprocess
import sys
import time

import pytest

import pagefacets

HEAVY = ("torch", "numpy", "rich", "typer", "safetensors", "pyarrow", "lance", "matplotlib", "scipy", "loky")


def modules():
    names = [m.name for m in pkgutil.walk_packages(pagefacets.__path__, "pagefacets.")]
    return [name for name in names if not name.endswith("__main__")]


def test_every_public_name_is_there_and_only_those():
    assert len(pagefacets.__all__) == len(set(pagefacets.__all__))
    assert set(pagefacets.__all__) - {"__version__"} == set(pagefacets._HOME)
    for name in pagefacets.__all__:
        assert getattr(pagefacets, name) is not None
    assert dir(pagefacets) == sorted(pagefacets.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Magick'"):
        _ = pagefacets.Magick


@pytest.mark.parametrize("name", modules())
def test_all_is_exact_in_every_module(name):
    module = importlib.import_module(name)
    if not hasattr(module, "__all__"):
        assert module.__file__.endswith("__init__.py")
        return
    assert len(module.__all__) == len(set(module.__all__))
    for public in module.__all__:
        assert hasattr(module, public), public
    here = {
        label
        for label, value in vars(module).items()
        if not label.startswith("_") and getattr(value, "__module__", None) == name and hasattr(value, "__qualname__")
    }
    assert here <= set(module.__all__)


def loaded_by(code):
    listing = f"{code}\nimport sys\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    return set(
        subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_loads_nothing_heavy():
    assert not loaded_by("import pagefacets").intersection(HEAVY)


def test_help_is_quick_and_loads_no_torch():
    code = """
import sys
from pagefacets.cli.main import main
sys.argv = ["pagefacets", "--help"]
try:
    main()
except SystemExit:
    pass
"""
    assert not loaded_by(code).intersection(set(HEAVY) - {"typer", "rich"})
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pagefacets", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5


@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        ("matplotlib", "from pagefacets.evidence.plots import check_target; check_target('x.png')", "plots"),
        ("huggingface_hub", "pf.open_pages('owner/name')", "hub"),
    ],
)
def test_without_an_extra_one_sentence_names_it(package, code, extra, tmp_path):
    """Only the base dependencies: the optional package is hidden from a fresh interpreter."""
    script = f"import sys; sys.modules[{package!r}] = None\nimport pagefacets as pf\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert f"pip install 'pagefacets[{extra}]'" in done.stderr
