"""Shared by every test: where real vectors lie, pages to draw, and one thread for small matrices."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "pagefacets", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("pagefacets")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def realdata():
    """The folder of real vectors: $PAGEFACETS_DATA, or shared/data beside the checkout."""
    here = Path(os.environ.get("PAGEFACETS_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not here.is_dir():
        pytest.skip(f"no real vectors at {here}: set PAGEFACETS_DATA to measure on them")
    return here


def clustered(n, p=128, *, clusters=12, spread=0.8, seed=0):
    """Rows around a few directions, as the patches of a page are; not normalised."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, p))
    rows = centres[rng.integers(0, clusters, n)] + spread * rng.standard_normal((n, p))
    return rows.astype(np.float32)


@pytest.fixture(scope="session")
def draw():
    return clustered
