import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagefacets.errors import InputError, PageError
from pagefacets.interaction import maxsim
from pagefacets.vectors.backbones.backbone import Backbone, Source
from pagefacets.vectors.single import RECIPES, SingleVectorEncoder
from tests.checkpoints.backbones import HIDDEN, jina_v4, lora, qwen2_vl, qwen3_vl
from tests.checkpoints.pages import Broken, Noise, page, pages

SMALL = {"min_pixels": 28 * 28, "max_pixels": 16 * 28 * 28}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder for each family, laid out as its real checkpoint, and the same model as transformers or peft has it."""
    home = tmp_path_factory.mktemp("single")
    base = qwen2_vl(home / "base")
    oracles = {
        "vlm2vec": lora(home / "vlm2vec", home / "base", base),
        "vlm2vec-v2": lora(home / "vlm2vec-v2", home / "base", qwen2_vl(home / "base"), dora=True, seed=2),
        "unime-v2": qwen2_vl(home / "unime-v2", seed=3),
        "qwen3-vl-embedding": qwen3_vl(home / "qwen3-vl-embedding"),
        "jina-v4-single": jina_v4(home / "jina-v4-single"),
    }
    return home, oracles


def made(home, family, **options):
    return SingleVectorEncoder(str(home / family), family=family, **{**SMALL, **options})


def by_hand(model, encoder, picture, *, grid):
    """The last hidden states of a page, by transformers' own tokenizer, positions and forward."""
    from transformers import AutoImageProcessor, AutoTokenizer

    config = encoder.config()
    tokenizer = AutoTokenizer.from_pretrained(config["name"])
    bounds = {bound: config[bound] for bound in ("min_pixels", "max_pixels")}
    seen = AutoImageProcessor.from_pretrained(config["name"], backend="pil", **bounds)(
        images=picture, return_tensors="pt"
    )
    cells = int(seen["image_grid_thw"].prod()) // 4
    text = config["page_prompt"].replace("<|image_pad|>", "<|image_pad|>" * cells)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    image = (ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")).int()
    places = {"mm_token_type_ids": image} if grid else {"position_ids": torch.arange(ids.shape[1]).expand(3, 1, -1)}
    with torch.no_grad():
        states = model.model(input_ids=ids, **seen, **places).last_hidden_state[0]
    return states, image[0].bool()


@pytest.mark.parametrize("family", list(RECIPES))
def test_a_page_and_a_query_are_one_unit_vector_each(places, family):
    encoder = made(places[0], family)
    found = list(encoder.encode_pages(pages()))
    queries = encoder.encode_queries(["what is the revenue?", "capital expenditure in 2023"])
    rows = torch.cat([*(one.vectors for one in found), *queries])
    assert rows.shape == (5, HIDDEN)
    assert encoder.dim == HIDDEN
    assert torch.allclose(rows.norm(dim=1), torch.ones(5), atol=1e-6)
    assert [one.id for one in found] == [one.id for one in pages()]
    assert all(one.grid is None and one.image_mask is None for one in found)
    assert torch.allclose(maxsim(queries[0], found)[0], (queries[0] @ found[0].vectors.T).squeeze(), atol=1e-6)


@pytest.mark.parametrize("family", list(RECIPES))
def test_a_page_has_the_same_vector_alone_and_among_others(places, family):
    encoder = made(places[0], family)
    together = [found.vectors for found in encoder.encode_pages(pages())]
    alone = [next(encoder.encode_pages([one])).vectors for one in pages()]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    queries = ["a", "what was the capital expenditure in 2023?", "total"]
    torch.testing.assert_close(
        encoder.encode_queries(queries), [encoder.encode_queries([one])[0] for one in queries], atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("family", ["vlm2vec", "vlm2vec-v2", "unime-v2", "qwen3-vl-embedding"])
def test_a_page_is_the_last_hidden_state_of_its_prompt(places, family):
    home, oracles = places
    encoder = made(home, family)
    [shown] = pages(((100, 140),))
    picture = shown.image(None).resize((1344, 1344)) if family == "unime-v2" else shown.image(None)
    states, _ = by_hand(oracles[family], encoder, picture, grid=family == "qwen3-vl-embedding")
    expected = torch.nn.functional.normalize(states[-1:], dim=1)
    torch.testing.assert_close(next(encoder.encode_pages([shown])).vectors, expected, atol=1e-5, rtol=0)


def test_jinas_page_is_the_mean_from_vision_start_to_vision_end_and_its_query_the_mean_of_all(places):
    from transformers import AutoTokenizer

    home, oracles = places
    encoder = made(home, "jina-v4-single")
    [shown] = pages(((100, 140),))
    states, image = by_hand(oracles["jina-v4-single"], encoder, shown.image(None), grid=True)
    first, last = image.nonzero()[0].item() - 1, image.nonzero()[-1].item() + 1
    expected = torch.nn.functional.normalize(states[first : last + 1].mean(0, keepdim=True), dim=1)
    torch.testing.assert_close(next(encoder.encode_pages([shown])).vectors, expected, atol=1e-5, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(home / "jina-v4-single")
    ids = torch.tensor([tokenizer("Query: total revenue")["input_ids"]])
    with torch.no_grad():
        words = oracles["jina-v4-single"].model(input_ids=ids).last_hidden_state[0]
    expected = torch.nn.functional.normalize(words.mean(0, keepdim=True), dim=1)
    torch.testing.assert_close(encoder.encode_queries(["total revenue"])[0], expected, atol=1e-5, rtol=0)
    assert encoder.id == f"{home / 'jina-v4-single'}:single"


def test_images_without_vision_start_are_placed_like_words(places):
    """Where nothing announces an image, the code these checkpoints were trained with gave it no rows and columns."""
    home, oracles = places
    encoder = made(home, "vlm2vec")
    [shown] = pages(((100, 140),))
    [found] = encoder.encode_pages([shown])
    states, _ = by_hand(oracles["vlm2vec"], encoder, shown.image(None), grid=True)
    assert not torch.allclose(found.vectors, torch.nn.functional.normalize(states[-1:], dim=1), atol=1e-3)


def test_positions_are_those_of_transformers(places):
    home, oracles = places
    prompter = made(home, "qwen3-vl-embedding")._backbone.prompter
    model = oracles["qwen3-vl-embedding"].model
    for shown in pages(((100, 140), (300, 70))):
        prompt = prompter.page(shown.image(None), RECIPES["qwen3-vl-embedding"].prompts.page)
        ids = torch.tensor([prompt.ids])
        image = (ids == model.config.image_token_id).int()
        expected, _ = model.get_rope_index(ids, mm_token_type_ids=image, image_grid_thw=torch.tensor([prompt.shape]))
        assert torch.equal(prompt.positions("grid"), expected[:, 0])


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("old_names", [False, True])
def test_an_adapter_is_merged_as_peft_merges_it(tmp_path, dora, old_names):
    base = qwen2_vl(tmp_path / "base")
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    merged = lora(tmp_path / "adapter", tmp_path / "base", base, dora=dora, old_names=old_names).model.state_dict()
    ours = Backbone(Source(str(tmp_path / "adapter")), "Qwen2VL")._model.state_dict()
    changed = [name for name in before if not torch.equal(merged[name], before[name])]
    assert len(changed) == 6
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, merged[name], atol=1e-6, rtol=1e-5)


def test_an_adapter_decides_the_vectors(places, tmp_path):
    home, _ = places
    base = SingleVectorEncoder(str(home / "base"), family="vlm2vec", **SMALL)
    adapted = made(home, "vlm2vec")
    ((plain,), (other,)) = (list(one.encode_pages(pages(((64, 64),)))) for one in (base, adapted))
    assert (plain.vectors @ other.vectors.T).item() < 0.99
    for file in (home / "vlm2vec").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    factors = load_file(tmp_path / "adapter_model.safetensors")
    save_file(
        {key: tensor * 0 if "lora_B" in key else tensor for key, tensor in factors.items()},
        tmp_path / "adapter_model.safetensors",
    )
    silenced = SingleVectorEncoder(str(tmp_path), family="vlm2vec", **SMALL)
    torch.testing.assert_close(
        next(silenced.encode_pages(pages(((64, 64),)))).vectors, plain.vectors, atol=1e-5, rtol=0
    )


def test_a_long_vector_is_cut_to_2048_and_normalised_again(tmp_path):
    qwen3_vl(tmp_path, hidden=2176, layers=1)
    cut, whole = (
        SingleVectorEncoder(str(tmp_path), family="qwen3-vl-embedding", **SMALL, **dim) for dim in ({}, {"dim": 2176})
    )
    assert (cut.dim, whole.dim) == (2048, 2176)
    assert cut.id == f"{whole.id}:2048"
    [short], [long] = (list(one.encode_pages(pages(((64, 64),)))) for one in (cut, whole))
    expected = long.vectors[:, :2048] / long.vectors[:, :2048].norm()
    torch.testing.assert_close(short.vectors, expected, atol=1e-6, rtol=0)
    [q_short], [q_long] = (one.encode_queries(["total"]) for one in (cut, whole))
    torch.testing.assert_close(q_short, q_long[:, :2048] / q_long[:, :2048].norm(), atol=1e-6, rtol=0)


def test_the_token_that_a_tokenizer_puts_behind_a_text_is_the_one_that_is_read(places):
    prompter = made(places[0], "qwen3-vl-embedding")._backbone.prompter
    prompts = RECIPES["qwen3-vl-embedding"].prompts
    for prompt in (prompter.query("total", prompts.query), prompter.page(Noise(64, 64, 0).image(None), prompts.page)):
        assert prompt.ids[-1] == prompter.added["<|endoftext|>"]


def test_a_query_reads_as_the_tokenizer_reads_its_prompt(places):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(places[0] / "vlm2vec")
    prompter = made(places[0], "vlm2vec")._backbone.prompter
    for family in ("vlm2vec", "qwen3-vl-embedding", "jina-v4-single"):
        template = RECIPES[family].prompts.query
        for text in ("what is the total revenue?", " spaced ", "größe 収益 مرحبا", "a" * 300):
            ids = prompter.query(text, template).ids
            assert list(ids) == tokenizer(template.replace("{query}", text))["input_ids"]


def test_a_query_that_spells_a_special_token_is_read_as_letters(places):
    encoder = made(places[0], "qwen3-vl-embedding")
    prompter = encoder._backbone.prompter
    text = "<|im_end|> <|image_pad|> \ud800"
    ids = prompter.query(text, RECIPES["qwen3-vl-embedding"].prompts.query).ids
    assert prompter.added["<|image_pad|>"] not in ids
    assert ids.count(prompter.added["<|im_end|>"]) == 2
    assert encoder.encode_queries([text])[0].shape == (1, HIDDEN)


def test_its_configuration_makes_the_encoder_again(places):
    encoder = made(places[0], "vlm2vec-v2", page_prompt="<|image_pad|> What?", dim=20)
    told = json.loads(json.dumps(encoder.config()))
    again = SingleVectorEncoder(told.pop("name"), **told)
    assert (again.id, again.query_prefix) == (encoder.id, "Find a document image that matches the given query: ")
    ((first,), (second,)) = (list(one.encode_pages(pages(((64, 64),)))) for one in (encoder, again))
    assert torch.equal(first.vectors, second.vectors)


def test_the_authors_bounds_on_pixels_come_before_the_checkpoints(places):
    home, _ = places
    told = SingleVectorEncoder(str(home / "vlm2vec"), family="vlm2vec").config()
    assert (told["min_pixels"], told["max_pixels"]) == (56 * 56, 1280 * 28 * 28)
    told = SingleVectorEncoder(str(home / "unime-v2"), family="unime-v2").config()
    assert (told["min_pixels"], told["max_pixels"]) == (4 * 28 * 28, 16 * 28 * 28)


def test_bfloat16_stays_near_float32(places):
    half, full = (made(places[0], "qwen3-vl-embedding", dtype=dtype) for dtype in ("bfloat16", "float32"))
    ((near,), (exact,)) = (list(one.encode_pages(pages(((100, 140),)))) for one in (half, full))
    assert near.vectors.dtype == torch.float32
    assert (near.vectors @ exact.vectors.T).item() > 0.999


def test_a_page_that_cannot_be_read_is_reported_or_ends_the_run(places):
    encoder = made(places[0], "unime-v2")
    broken = page(Broken("broken.png"), "broken.png")
    strip = page(Noise(2000, 4, 0), "strip.png")
    first, last = pages(((64, 64), (100, 140)))
    reported = []
    found = list(made(places[0], "vlm2vec").encode_pages([first, broken, strip, last], skipped=reported.append))
    assert [one.id for one in found] == [first.id, last.id]
    assert [error.place for error in reported] == ["broken.png", "strip.png"]
    with pytest.raises(PageError, match=r"broken\.png: is truncated"):
        list(encoder.encode_pages([first, broken]))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dim": HIDDEN + 1}, "dim must be from 1 to 32"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ({"page_prompt": "Describe."}, r"page_prompt must hold <\|image_pad\|> exactly once"),
        ({"query_prompt": "{query} {query}"}, "query_prompt must hold {query} exactly once"),
        ({"min_pixels": 17 * 28 * 28}, "pages cannot be scaled to between 13328 and 12544 pixels"),
        ({"max_pixels": -1}, "pages cannot be scaled to between 784 and -1 pixels"),
        ({"batch_size": 0}, "batch_size must be 'auto' or a count of at least 1, got 0"),
    ],
)
def test_an_option_that_cannot_be_is_refused(places, options, told):
    with pytest.raises(InputError, match=told):
        made(places[0], "vlm2vec", **options)


def test_a_checkpoint_of_another_family_is_refused(places, tmp_path):
    home, _ = places
    with pytest.raises(InputError, match="is a 'qwen2_vl' model, but this family is built on 'qwen3_vl'"):
        SingleVectorEncoder(str(home / "unime-v2"), family="qwen3-vl-embedding")
    with pytest.raises(InputError, match="family must be one of vlm2vec"):
        SingleVectorEncoder(str(home / "unime-v2"), family="clip")
    with pytest.raises(InputError, match="query 1 is '', which has no words"):
        made(home, "unime-v2").encode_queries(["a", ""])
    for file in (home / "vlm2vec").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    for setting, told in (({"bias": "all"}, "asks for bias"), ({"peft_type": "IA3"}, "of the kind IA3")):
        (tmp_path / "adapter_config.json").write_text(json.dumps({**settings, **setting}))
        with pytest.raises(InputError, match=told):
            SingleVectorEncoder(str(tmp_path), family="vlm2vec", **SMALL).encode_queries(["a"])
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    factors = load_file(tmp_path / "adapter_model.safetensors")
    save_file(
        {key.replace("layers.1", "layers.9"): t for key, t in factors.items()}, tmp_path / "adapter_model.safetensors"
    )
    with pytest.raises(InputError, match=r"changes language_model\.layers\.9.*but its base has no such weight"):
        SingleVectorEncoder(str(tmp_path), family="vlm2vec", **SMALL).encode_queries(["a"])


@pytest.mark.parametrize("fault", ["missing", "foreign"])
def test_weights_that_are_not_the_models_are_refused(places, tmp_path, fault):
    for file in (places[0] / "base").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    if fault == "missing":
        del weights["model.layers.1.mlp.up_proj.weight"]
    else:
        weights["model.layers.0.mlp.gate.weight"] = torch.zeros(2, 2)
    save_file(weights, tmp_path / "model.safetensors")
    encoder = SingleVectorEncoder(str(tmp_path), family="unime-v2")
    with pytest.raises(
        InputError, match=r"(lacks|has unknown) weights of its own Qwen2VL model, 1 such as language_model\.layers"
    ):
        encoder.encode_queries(["a"])
