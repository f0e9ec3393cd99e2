"""One index and one server for all tests that only ask."""

import pytest

from pagefacets.pipeline import Index
from tests.serve.library import documents, server


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    Index.build(folder / "library.pf", documents(folder / "documents"), full=True)
    return folder / "library.pf"


@pytest.fixture(scope="session")
def running(index):
    with server(index) as one:
        yield one
