"""A Qwen3-VL of a few thousand weights, saved and loaded as the real one is, asked through the same code."""

import json
import re

import pytest
import torch
from evidence.questioners import Unreadable, a_page, learn, make_checkpoint, questions_about

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError
from pagefacets.evidence.asker import PROMPT, prompt_for
from pagefacets.evidence.local import LocalModel
from pagefacets.evidence.questions import ask_questions

SHAPES = [a_page(2), a_page(9, size=(200, 100)), a_page(20, size=(64, 140))]


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("tiny-qwen3-vl"))


@pytest.fixture(scope="module")
def asker(checkpoint):
    return LocalModel(str(checkpoint), max_tokens=24)


def texts(asker, pages, **options):
    return {page.id: answer.text for page, answer in asker.answers(pages, PROMPT, **options)}


def test_the_model_sees_the_prompt_and_every_patch_of_each_image(asker):
    model, processor, _ = asker._loaded
    given, looked = [], []
    hooks = (
        model.register_forward_pre_hook(lambda _, args, named: given.append(named), with_kwargs=True),
        model.model.visual.register_forward_pre_hook(
            lambda _, args, named: looked.append((args[0], named["grid_thw"])), with_kwargs=True
        ),
    )
    try:
        texts(asker, SHAPES)
    finally:
        for hook in hooks:
            hook.remove()
    ((pixels, grids),) = looked
    patches = grids.prod(1)
    assert pixels.shape == (patches.sum(), 3 * 2 * 16 * 16)
    for row, mask, count in zip(given[0]["input_ids"], given[0]["attention_mask"], patches, strict=True):
        tokens = row[mask.bool()]
        assert int((tokens == model.config.image_token_id).sum()) * 4 == count
        said = re.sub(r"(<\|image_pad\|>)+", "(image)", processor.tokenizer.decode(tokens))
        assert said == (
            f"<|im_start|>user\n<|vision_start|>(image)<|vision_end|>{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert bool(mask[-1])
    greys = [float(block.mean()) for block in pixels.split(patches.tolist())]
    assert greys == pytest.approx([page.number * 8 / 127.5 - 1 for page in SHAPES], abs=0.02)


def test_the_same_answer_alone_in_a_batch_and_again(asker):
    together = texts(asker, SHAPES)
    assert texts(asker, SHAPES) == together
    for page in SHAPES:
        assert texts(asker, [page]) == {page.id: together[page.id]}


def test_later_attempts_draw_other_words_by_a_seed_of_their_own(asker):
    before = torch.random.get_rng_state()
    drawn = [texts(asker, SHAPES[:1], attempt=attempt)["report.pdf#2"] for attempt in (0, 1, 1, 2)]
    assert drawn[1] == drawn[2]
    assert len(set(drawn)) == 3
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_is_no_list_of_questions_is_reported_as_that(asker, tmp_path):
    path = tmp_path / "queries.jsonl"
    broken = Page("bad.png", "bad.png", 0, None, "d", Unreadable("bad.png"))
    reported = []
    made = ask_questions([SHAPES[0], broken], asker, path, attempts=2, skipped=reported.append)
    assert (made.pages, made.skipped) == (0, 2)
    assert path.read_bytes() == b""
    whys = {error.place: error.why for error in reported}
    assert whys["bad.png"] == "the image is truncated: save it again"
    assert whys["report.pdf#2"].startswith("0 of 5 questions after 2 attempts, the last answer, cut off at its length")
    with pytest.raises(PageError, match=r"bad\.png"):
        ask_questions([broken, SHAPES[0]], asker, path)


def test_a_model_that_has_learnt_two_pages_asks_about_the_one_it_is_shown(tmp_path):
    """Only the images differ, so what reaches the file went through the pixels."""
    folder = make_checkpoint(tmp_path / "taught")
    pages = [a_page(2), a_page(28)]
    assert learn(folder, pages) < 0.05
    asker = LocalModel(str(folder))
    made = ask_questions(list(reversed(pages)), asker, tmp_path / "queries.jsonl")
    assert (made.questions, made.model) == (10, "taught")
    written = [json.loads(line) for line in (tmp_path / "queries.jsonl").read_text().splitlines()]
    assert [line["query"] for line in written] == [*questions_about(28), *questions_about(2)]
    assert all(not answer.cut for _, answer in asker.answers(pages, prompt_for(5)))


def test_settings_reach_the_generation(checkpoint):
    short = LocalModel(str(checkpoint), settings={"max_new_tokens": 3})
    whole = LocalModel(str(checkpoint), max_tokens=24)
    page = SHAPES[0].id
    assert texts(whole, SHAPES[:1])[page].startswith(texts(short, SHAPES[:1])[page])
    assert len(texts(short, SHAPES[:1])[page]) < len(texts(whole, SHAPES[:1])[page])


def test_loading_and_asking_say_nothing_of_their_own(checkpoint, capfd):
    texts(LocalModel(str(checkpoint), max_tokens=4), SHAPES[:1])
    texts(LocalModel(str(checkpoint), max_tokens=4), SHAPES[:1], attempt=1)
    assert capfd.readouterr() == ("", "")


def test_the_name_of_a_folder_is_the_models(checkpoint):
    assert LocalModel(str(checkpoint)).id == checkpoint.name
    assert LocalModel("Qwen/Qwen3-VL-8B-Instruct").id == "Qwen/Qwen3-VL-8B-Instruct"


def test_what_cannot_be_loaded_is_one_sentence(checkpoint, tmp_path):
    def message(model, **options):
        with pytest.raises(InputError) as refused:
            list(LocalModel(str(model), **options).answers(SHAPES[:1], PROMPT))
        assert len(str(refused.value).splitlines()) == 1
        return str(refused.value)

    assert "is not on this machine" in message("someone/never-fetched")
    (tmp_path / "empty").mkdir()
    assert "holds no config.json" in message(tmp_path / "empty")
    assert "device must be cpu, cuda or cuda:1, got 'gpu'" in message(checkpoint, device="gpu")

    mute = make_checkpoint(tmp_path / "mute", template=None)
    assert "has no chat template" in message(mute)

    copied = tmp_path / "text"
    copied.mkdir()
    (copied / "config.json").write_text('{"model_type": "bert", "vocab_size": 9}')
    assert "cannot be loaded as a vision-language model" in message(copied)
    (copied / "config.json").write_text('{"model_type": "nothing known"}')
    assert "cannot be loaded as a vision-language model" in message(copied)

    (mute / "chat_template.jinja").write_bytes((checkpoint / "chat_template.jinja").read_bytes())
    weights = (mute / "model.safetensors").read_bytes()
    (mute / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "cannot be loaded as a vision-language model" in message(mute)
    config = json.loads((mute / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 3
    (mute / "config.json").write_text(json.dumps(config))
    (mute / "model.safetensors").write_bytes(weights)
    assert "lacks 11 weights, such as model.language_model.layers.2" in message(mute)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ],
)
def test_options_that_make_no_sense(options, why):
    with pytest.raises(InputError, match=why):
        LocalModel("x", **options)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_in_both_precisions(checkpoint):
    here = texts(LocalModel(str(checkpoint), device="cpu", max_tokens=12), SHAPES)
    there = texts(LocalModel(str(checkpoint), device="cuda", dtype="float32", max_tokens=12), SHAPES)
    assert there == here
    assert set(texts(LocalModel(str(checkpoint), device="cuda", max_tokens=12), SHAPES, attempt=1)) == set(here)
