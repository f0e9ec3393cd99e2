"""Where the tokens of a page stand, and batches that fit."""

import itertools
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.errors import InputError
from pagefacets.vectors.backbones.batches import Batches, ahead
from pagefacets.vectors.backbones.prompts import PROMPTS, Template, pad, page_positions
from tests.checkpoints.retrievers import qwen_config
from tests.checkpoints.tokenizer import qwen_tokenizer


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (5, 3), (24, 31), (36, 20)])
def test_positions_equal_those_of_transformers(kind, grid):
    import transformers

    tokenizer = qwen_tokenizer()
    config = qwen_config(kind, tokenizer)
    with torch.device("meta"):
        model = getattr(transformers, {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel"}[kind])(config)
    columns, rows = grid
    cells = "<|image_pad|>" * columns * rows
    prompt = f"<|im_start|>user\n<|vision_start|>{cells}<|vision_end|>Describe the image."
    ids = torch.tensor([tokenizer.encode(prompt)])
    expected, _ = model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == config.image_token_id).int(),
        image_grid_thw=torch.tensor([[1, 2 * rows, 2 * columns]]),
        attention_mask=torch.ones_like(ids),
    )
    before = ids[0].tolist().index(config.image_token_id)
    assert torch.equal(page_positions(before, grid, ids.shape[1]), expected[:, 0])


def test_positions_of_plain_text_count_on():
    assert torch.equal(page_positions(3, None, 4), torch.tensor([[0, 1, 2, 3]] * 3))


def test_the_prompt_has_four_tokens_before_the_image_and_seven_behind():
    made = tokenizers_own(qwen_tokenizer())
    image = made.token_to_id("<|image_pad|>")
    for family in ("colqwen2", "colqwen2.5", "jina-v4"):
        template = Template.of(PROMPTS[family], made, image=image, place="here")
        assert (len(template.before), len(template.after)) == (4, 7)
        assert template.ids(20).tolist().count(image) == 20
    with pytest.raises(InputError, match=r"here has the image token 3 .* download them again"):
        Template.of(PROMPTS["colqwen2"], made, image=3, place="here")


def tokenizers_own(tokenizer):
    return tokenizer.backend_tokenizer


def test_padding_is_on_the_right_and_known():
    padded, own = pad([torch.tensor([7, 8, 9]), torch.tensor([5])], 0)
    assert padded.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert own.tolist() == [[True, True, True], [True, False, False]]


def batches(size, bound=4096):
    made = Batches(size, tokens=int, device=torch.device("cpu"), remedy="take fewer")
    if made._bound is not None:
        made._bound = bound
    return made


@given(st.lists(st.integers(1, 50), max_size=60), st.one_of(st.just("auto"), st.integers(1, 9)), st.integers(1, 12))
def test_batches_keep_order_and_bounds_whatever_memory_allows(items, size, capacity):
    """A machine that takes `capacity` items at once: results are those of one by one, and it is not asked in vain."""
    seen, failures = [], []

    def compute(batch):
        seen.append(list(batch))
        if len(batch) > capacity:
            failures.append(len(batch))
            raise torch.OutOfMemoryError("no memory. Really.")
        return [-item for item in batch]

    made = batches(size, bound=120)
    assert list(made.run(items, compute)) == [-item for item in items]
    for batch in seen:
        assert size == "auto" or len(batch) <= size
        assert size != "auto" or len(batch) == 1 or len(batch) * max(batch) <= 120
    assert len(failures) <= 8


@pytest.mark.parametrize("allocate", [torch.empty, np.empty])
def test_memory_of_this_machine_that_really_runs_out_halves_the_batch(allocate):
    sizes = []

    def compute(batch):
        sizes.append(len(batch))
        allocate(1 << 50 if len(batch) > 2 else 1)
        return batch

    assert list(batches(8).run(range(16), compute)) == list(range(16))
    assert sizes == [8, 4, 2, 2, 2, 2, 2, 2, 2, 2]

    def fail(batch):
        raise RuntimeError("of another kind")

    with pytest.raises(RuntimeError, match="of another kind"):
        list(batches(8).run(range(16), fail))
    with pytest.raises(InputError, match=r"do not fit into memory .*: take fewer"):
        list(batches(8).run(range(16), lambda _: allocate(1 << 50)))


def test_batches_are_made_as_they_are_needed():
    taken = []
    supply = (taken.append(i) or i for i in itertools.count(1))
    found = batches(3).run(supply, list)
    assert list(itertools.islice(found, 3)) == [1, 2, 3]
    assert len(taken) == 4


def test_batch_sizes_that_are_none():
    for wrong in (0, -1, True):
        with pytest.raises(InputError, match="batch_size must be 'auto' or a count of at least 1"):
            batches(wrong)


def test_reading_ahead_keeps_order_and_puts_errors_in_their_place():
    def items():
        yield from range(5)
        raise ValueError("the sixth")

    found = ahead(items(), 2)
    assert [next(found) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="the sixth"):
        next(found)
    assert list(ahead([], 2)) == []
    assert list(ahead(range(100), 3)) == list(range(100))


def test_reading_ahead_is_bounded_and_ends_with_its_reader():
    taken = []
    found = ahead((taken.append(i) or i for i in itertools.count()), 3)
    assert next(found) == 0
    time.sleep(0.3)
    assert len(taken) <= 5
    assert any(thread.name == "pagefacets-ahead" for thread in threading.enumerate())
    found.close()
    assert not any(thread.name == "pagefacets-ahead" for thread in threading.enumerate())


def test_a_device_of_its_own_computes_while_the_next_items_are_made():
    """Each takes as long as the other: together they take little more than one of them."""

    def slowly(n):
        for i in range(1, n + 1):
            time.sleep(0.01)
            yield i

    def compute(batch):
        time.sleep(0.01 * len(batch))
        return batch

    def seconds(device):
        made = Batches(2, tokens=int, device=torch.device(device), remedy="")
        start = time.perf_counter()
        assert list(made.run(slowly(30), compute)) == list(range(1, 31))
        return time.perf_counter() - start

    assert seconds("meta") < 0.8 * seconds("cpu")
