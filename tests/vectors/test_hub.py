"""Hub retrievers, on tiny checkpoints of the real architectures saved as their authors save them."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pagefacets.errors import InputError, PageError
from pagefacets.vectors.backbones.importance import last_row
from pagefacets.vectors.encoder import encoder
from tests.checkpoints import retrievers
from tests.checkpoints.pages import SHAPES, Broken, Noise, page, pages

QWEN_ROWS, PALI_ROWS = 11, 6
FAMILIES = {
    "colpali": "colpali",
    "colpali-hf": "colpali",
    "colqwen2": "colqwen2",
    "colqwen2-hf": "colqwen2",
    "colqwen2.5": "colqwen2.5",
    "jina-v4": "jina-v4",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("retrievers")
    return {name: Path(retrievers.saved(name, root)) for name in FAMILIES}


@pytest.fixture(params=sorted(FAMILIES))
def name(request):
    return request.param


def opened(name, **options):
    """On the CPU wherever the tests run, for results to the last digit."""
    return encoder(name, **{"device": "cpu", **options})


def matrices(encoded):
    return [found.vectors for found in encoded]


def assert_close(found, expected, *, atol=1e-5):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=0)


def on_pil_images(processor, folder):
    """With torchvision installed transformers scales images by it, to pixels that differ in the last digits."""
    from transformers import AutoImageProcessor

    processor.image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return processor


def test_every_architecture_gives_ragged_unit_vectors_on_a_grid(folders, name):
    model = opened(str(folders[name]))
    encoded = list(model.encode_pages(pages()))
    assert (model.family, model.dim, model.id) == (FAMILIES[name], 128, str(folders[name]))
    assert [found.id for found in encoded] == ["page-0", "page-1", "page-2"]
    for found, (width, height) in zip(encoded, SHAPES, strict=True):
        columns, rows = found.grid
        assert found.vectors.dtype == torch.float32
        assert int(found.image_mask.sum()) == columns * rows
        outside = PALI_ROWS if FAMILIES[name] == "colpali" else QWEN_ROWS
        assert found.n == columns * rows + outside
        if FAMILIES[name] == "colpali":
            assert (columns, rows) == (4, 4)
        else:
            # Within 24 cells, as near as can be to the shape of the page.
            assert columns * rows <= 24
            assert math.isclose(columns / rows, width / height, rel_tol=0.2)
        torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(found.n))
        assert found.importance is None
    # Patches differ from each other, and pages from pages: nothing has collapsed in the tiny model.
    assert (encoded[0].vectors @ encoded[0].vectors.T).median() < 0.95
    (query,) = model.encode_queries(["what was the revenue?"])
    torch.testing.assert_close(query.norm(dim=1), torch.ones(len(query)))


def test_a_page_has_the_same_vectors_alone_and_among_others(folders, name):
    together = list(opened(str(folders[name]), importance=True).encode_pages(pages()))
    model = opened(str(folders[name]), importance=True, batch_size=1)
    alone = [next(model.encode_pages([one])) for one in pages()]
    assert_close(matrices(together), matrices(alone))
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.importance, other.importance, atol=1e-6, rtol=0, equal_nan=True)
    queries = ["revenue?", "x", "what was the capital expenditure of the year in 2023?"]
    assert_close(model.encode_queries(queries), [model.encode_queries([query])[0] for query in queries])
    assert_close(opened(str(folders[name]), batch_size=2).encode_queries(queries), model.encode_queries(queries))


def test_the_configuration_makes_the_same_encoder_again(folders, name):
    options = {} if FAMILIES[name] == "colpali" else {"max_visual_tokens": 12, "min_pixels": 2000}
    model = opened(str(folders[name]), query_prefix="Ask: ", importance=True, **options)
    config = json.loads(json.dumps(dict(model.config())))
    again = opened(**config)
    assert again.config() == model.config()
    assert again.query_prefix == "Ask: "
    assert_close(matrices(again.encode_pages(pages())), matrices(model.encode_pages(pages())), atol=0)
    assert_close(again.encode_queries(["x"]), model.encode_queries(["x"]), atol=0)


def test_queries_carry_the_prefix_and_augmentation_of_the_checkpoint(folders):
    def texts(name):
        model = opened(str(folders[name]))
        ids = []
        model._retriever.register_forward_pre_hook(
            lambda module, args, kwargs: ids.append(kwargs["input_ids"]), with_kwargs=True
        )
        (vectors,) = model.encode_queries(["total revenue"])
        assert len(vectors) == ids[0].shape[1]
        return model._parts.tokenizer.decode(ids[0][0].tolist(), skip_special_tokens=False)

    assert texts("colqwen2.5") == "Query: total revenue" + "<|endoftext|>" * 10
    assert texts("colqwen2") == "Query: total revenue" + "<|endoftext|>" * 10
    assert texts("colqwen2-hf") == "Query: total revenue" + "<|endoftext|>" * 10 + "\n"
    assert texts("jina-v4") == "Query: total revenue"
    assert texts("colpali") == "<bos>Query: total revenue" + "<pad>" * 10 + "\n"
    assert texts("colpali-hf") == "<bos>Question: total revenue" + "<pad>" * 10 + "\n"
    assert opened(str(folders["colpali"])).query_prefix == "Query: "
    assert opened(str(folders["colpali-hf"])).query_prefix == "Question: "


def test_queries_in_any_script_and_of_any_length(folders, name):
    model = opened(str(folders[name]))
    queries = ["?", "ما هي الإيرادات؟", "収益はいくらですか", "e\u0301 👩‍👩‍👧", "half \ud83d a pair", "long " * 300]
    found = model.encode_queries(queries)
    assert [len(rows) for rows in found] == [len(model.encode_queries([query])[0]) for query in queries]
    assert all(torch.isfinite(rows).all() for rows in found)
    assert model.encode_queries([]) == []


def test_colpali_equals_transformers(folders):
    """The whole path of transformers for the same checkpoint: its processor, its forward pass."""
    from transformers import ColPaliForRetrieval, ColPaliProcessor

    theirs = ColPaliForRetrieval.from_pretrained(folders["colpali-hf"]).eval()
    processor = on_pil_images(ColPaliProcessor.from_pretrained(folders["colpali-hf"]), folders["colpali-hf"])
    model = opened(str(folders["colpali-hf"]))
    drawn = pages()
    with torch.no_grad():
        expected = theirs(**processor.process_images([one.image() for one in drawn])).embeddings
        read = processor.process_queries(["what was the revenue of 2023?"])
        query = theirs(**read).embeddings[0]
    assert_close(matrices(model.encode_pages(drawn)), list(expected), atol=1e-5)
    assert_close(model.encode_queries(["what was the revenue of 2023?"]), [query], atol=1e-5)


def test_colqwen2_equals_transformers_given_multimodal_positions(folders):
    """transformers numbers the tokens of a page one by one unless told where the cells of its image are."""
    from transformers import ColQwen2ForRetrieval, ColQwen2Processor

    theirs = ColQwen2ForRetrieval.from_pretrained(folders["colqwen2-hf"]).eval()
    processor = on_pil_images(ColQwen2Processor.from_pretrained(folders["colqwen2-hf"]), folders["colqwen2-hf"])
    processor.tokenizer.padding_side = "left"
    model = opened(str(folders["colqwen2-hf"]))
    drawn = pages()
    with torch.no_grad():
        read = processor.process_images([one.image() for one in drawn])
        assert read["attention_mask"][:, 0].tolist() == [1, 1, 0]
        positions, _ = theirs.vlm.get_rope_index(
            read["input_ids"],
            mm_token_type_ids=(read["input_ids"] == processor.image_token_id).int(),
            image_grid_thw=read["image_grid_thw"],
            attention_mask=read["attention_mask"],
        )
        padded = theirs(**read, position_ids=positions).embeddings
        expected = [rows[there.bool()] for rows, there in zip(padded, read["attention_mask"], strict=True)]
        query = theirs(**processor.process_queries(["what was the revenue of 2023?"])).embeddings[0]
    assert_close(matrices(model.encode_pages(drawn)), expected, atol=1e-5)
    assert_close(model.encode_queries(["what was the revenue of 2023?"]), [query], atol=1e-5)


@pytest.mark.slow
def test_sentence_transformers_gives_the_same(folders):
    from sentence_transformers import MultiVectorEncoder

    theirs = MultiVectorEncoder(str(folders["colpali-hf"]), device="cpu")
    on_pil_images(theirs[0].processor, folders["colpali-hf"])
    model = opened(str(folders["colpali-hf"]))
    drawn = pages()
    assert_close(matrices(model.encode_pages(drawn)), theirs.encode_document([one.image() for one in drawn]), atol=1e-4)
    queries = ["what was the revenue?", "2023"]
    assert_close(model.encode_queries(queries), theirs.encode_query(queries), atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3, "auto"])
def test_importance_is_one_row_of_the_full_attention(folders, name, size):
    model = opened(str(folders[name]), importance=True, batch_size=size)
    full = opened(str(folders[name]), attention="eager", batch_size=1)
    attentions = []
    full._retriever.last_attention.register_forward_hook(lambda module, args, output: attentions.append(output[1]))
    expected = list(full.encode_pages(pages()))
    for found, other, attention in zip(model.encode_pages(pages()), expected, attentions, strict=True):
        assert attention.shape == (1, 4, found.n, found.n)
        row = attention[0].mean(0)[-1]
        torch.testing.assert_close(found.importance[found.image_mask], row[found.image_mask], atol=1e-5, rtol=0)
        assert found.importance[~found.image_mask].isnan().all()
        assert found.importance[found.image_mask].std() > 1e-3
        torch.testing.assert_close(found.vectors, other.vectors, atol=1e-5, rtol=0)


def test_importance_sums_to_one_with_the_prompt_and_leaves_no_hook(folders):
    model = opened(str(folders["colqwen2.5"]))
    attention = model._retriever.last_attention
    attended = torch.ones(1, 35, dtype=torch.bool)
    with last_row(attention, attended) as row:
        next(model.encode_pages(pages()[:1]))
    torch.testing.assert_close(row.weights.sum(1), torch.ones(1))
    assert not attention._forward_pre_hooks


def test_attention_goes_both_ways_in_colpali_and_one_way_in_qwen(folders):
    def first_row_moves(name):
        model = opened(str(folders[name]))
        one, other = model.encode_queries(["total revenue of the year", "total revenue of the user"])
        return not torch.allclose(one[0], other[0], atol=1e-6)

    assert first_row_moves("colpali")
    assert first_row_moves("colpali-hf")
    assert not first_row_moves("colqwen2.5")
    assert not first_row_moves("jina-v4")


def test_bounds_on_visual_tokens(folders):
    folder = str(folders["colqwen2.5"])
    for bound in (4, 9, 16):
        for found in opened(folder, max_visual_tokens=bound, min_pixels=784).encode_pages(pages()):
            assert int(found.image_mask.sum()) <= bound
    assert opened(folder, max_visual_tokens=16).config()["max_pixels"] == 16 * 784
    small = next(opened(folder, min_pixels=16 * 784).encode_pages(pages([(64, 64)])))
    assert int(small.image_mask.sum()) == 16
    with pytest.raises(InputError, match="give one of them"):
        opened(folder, max_visual_tokens=4, max_pixels=4000)
    with pytest.raises(InputError, match="at least min_pixels"):
        opened(folder, max_visual_tokens=4, min_pixels=100_000)
    with pytest.raises(InputError, match="leave out the bounds"):
        opened(str(folders["colpali"]), max_visual_tokens=4)


def test_a_page_that_cannot_be_read(folders):
    first, second, _ = pages()
    strip = page(Noise(2100, 10, 0), "strip")
    broken = page(Broken("scan.png"), "scan.png")
    model = opened(str(folders["colqwen2.5"]))
    told = []
    encoded = list(model.encode_pages([first, broken, strip, second], skipped=told.append))
    assert [found.id for found in encoded] == ["page-0", "page-1"]
    assert [error.place for error in told] == ["scan.png", "strip"]
    assert "2100 x 10" in told[1].why
    with pytest.raises(PageError, match=r"scan\.png: is truncated"):
        list(model.encode_pages([first, broken]))
    # ColPali makes a square of everything.
    assert len(list(opened(str(folders["colpali"])).encode_pages([strip]))) == 1


def test_pages_are_read_as_they_are_needed(folders):
    read = []

    def endless():
        for i in itertools.count():
            read.append(i)
            yield page(Noise(64, 64, i), str(i))

    found = list(itertools.islice(opened(str(folders["colqwen2"]), batch_size=4).encode_pages(endless()), 6))
    assert [one.id for one in found] == list("012345")
    assert len(read) <= 9


def test_bfloat16_is_close_and_of_unit_length(folders, name):
    exact = list(opened(str(folders[name])).encode_pages(pages()))
    rounded = list(opened(str(folders[name]), dtype="bfloat16", importance=True).encode_pages(pages()))
    for one, other in zip(exact, rounded, strict=True):
        assert other.vectors.dtype == torch.float32
        torch.testing.assert_close(other.vectors.norm(dim=1), torch.ones(other.n))
        assert (one.vectors * other.vectors).sum(1).min() > 0.99
    with pytest.raises(InputError, match="dtype must be one of float32"):
        opened(str(folders[name]), dtype="int8")


def test_memory_that_runs_out_halves_the_batch_and_changes_nothing(folders, monkeypatch):
    expected = matrices(opened(str(folders["colqwen2.5"]), batch_size=1).encode_pages(pages() * 3))
    model = opened(str(folders["colqwen2.5"]))
    forward, sizes = model._retriever.forward, []

    def short_of_memory(**inputs):
        sizes.append(len(inputs["input_ids"]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(**inputs)

    monkeypatch.setattr(model._retriever, "forward", short_of_memory)
    assert_close(matrices(model.encode_pages(pages() * 3)), expected)
    assert sizes[:4] == [9, 4, 2, 2]
    before = len(sizes)
    assert_close(matrices(model.encode_pages(pages() * 3)), expected)
    assert max(sizes[before:]) <= 2
    monkeypatch.setattr(model._retriever, "forward", lambda **inputs: short_of_memory(input_ids=range(9)))
    with pytest.raises(InputError, match=r"35 tokens at once do not fit into memory .*: lower max_visual_tokens"):
        list(model.encode_pages(pages()))


def test_vectors_that_are_not_finite_are_refused(folders, monkeypatch):
    model = opened(str(folders["colpali"]), dtype="float16")
    monkeypatch.setattr(model._retriever, "forward", lambda **inputs: torch.full((1, 22, 128), torch.nan))
    with pytest.raises(InputError, match="no finite vectors of page 'page-0' in float16: use bfloat16"):
        next(model.encode_pages(pages()[:1]))


def test_the_weights_are_read_when_they_are_needed(folders, tmp_path):
    """What the small files tell is known at once: a run with nothing left to encode never waits for gigabytes."""
    model = opened(str(folders["colqwen2.5"]), base=str(folders["colqwen2.5"].parent / "colqwen2.5-base"))
    assert model.config()["base"] == str(folders["colqwen2.5"].parent / "colqwen2.5-base")
    assert "_retriever" not in vars(model)
    model.encode_queries(["now"])
    assert "_retriever" in vars(model)


def test_the_processors_of_transformers_write_the_same_page(folders):
    """Token by token and pixel by pixel, with the padding of the batch left out."""
    from transformers import ColQwen2Processor

    processor = on_pil_images(ColQwen2Processor.from_pretrained(folders["colqwen2-hf"]), folders["colqwen2-hf"])
    model = opened(str(folders["colqwen2"]))
    for one in pages():
        read = SimpleNamespace(**processor.process_images([one.image()]))
        made = model._input(one)
        assert made.ids.tolist() == read.input_ids[0].tolist()
        torch.testing.assert_close(made.pixels, read.pixel_values[0])
