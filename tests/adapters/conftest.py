import warnings

import pytest

import pagefacets as pf
from tests.adapters.library import passages, questions, saved_retriever


@pytest.fixture(scope="session")
def retriever_folder(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return saved_retriever(tmp_path_factory.mktemp("retriever"))


@pytest.fixture(scope="session")
def retriever(retriever_folder):
    from sentence_transformers import MultiVectorEncoder

    return MultiVectorEncoder(retriever_folder, device="cpu")


@pytest.fixture(scope="session")
def library():
    """The passages, the questions, and the answers with their grades."""
    corpus = passages()
    return corpus, *questions(corpus)


@pytest.fixture(scope="session")
def encoded(retriever, library):
    """The full vectors of the passages and of the questions, in the order of the library."""
    corpus, asked, _ = library
    return retriever.encode_document(list(corpus.values())), retriever.encode_query(list(asked.values()))


@pytest.fixture(scope="session")
def pool(encoded):
    """What is asked of the library, as if questions like these had been kept: the pool that MAGIC reads."""
    documents, queries = encoded
    return pf.CalibrationPool.build(queries, documents, size=40, dictionary=20)
