import json

import pytest
import torch

from pagefacets.errors import InputError
from tests.checkpoints.pages import Broken, page, pages

pytest.importorskip("mteb")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_model_of_mteb_encodes_pages_and_queries():
    from pagefacets.vectors.wrapped import MtebEncoder

    encoder = MtebEncoder("mteb/baseline-random-encoder")
    reported = []
    shown = pages()
    encoded = list(encoder.encode_pages([*shown, page(Broken("broken.png"), "broken.png")], skipped=reported.append))
    assert [one.id for one in encoded] == [one.id for one in shown]
    assert [error.place for error in reported] == ["broken.png"]
    for found in (*(one.vectors for one in encoded), *encoder.encode_queries(["total", "revenue"])):
        assert found.shape == (1, encoder.dim)
        assert torch.allclose(found.norm(dim=1), torch.ones(len(found)), atol=1e-5)
    alone = [next(encoder.encode_pages([one])).vectors for one in shown]
    torch.testing.assert_close([one.vectors for one in encoded], alone)


def test_its_configuration_makes_the_encoder_again():
    from pagefacets.vectors.wrapped import MtebEncoder

    encoder = MtebEncoder("mteb/baseline-random-encoder", task="VidoreArxivQARetrieval")
    told = json.loads(json.dumps(encoder.config()))
    again = MtebEncoder(told.pop("name"), **told)
    assert again.id == encoder.id == "mteb/baseline-random-encoder@2"
    torch.testing.assert_close(again.encode_queries(["a"]), encoder.encode_queries(["a"]))


def test_the_retriever_that_only_mteb_reads_is_in_its_registry():
    from pagefacets.vectors.wrapped import MtebEncoder

    encoder = MtebEncoder("openbmb/VisRAG-Ret")
    assert encoder.dim == 2304
    with pytest.raises(InputError, match=r"mteb cannot load openbmb/VisRAG-Ret here: .*(timm|torchvision)"):
        encoder.encode_queries(["a"])


def test_a_model_or_task_that_mteb_lacks_is_refused():
    from pagefacets.vectors.wrapped import MtebEncoder

    for names in ({"name": "nobody/nothing"}, {"name": "mteb/baseline-random-encoder", "task": "Nothing"}):
        with pytest.raises(InputError, match="mteb knows no model"):
            MtebEncoder(**names)
