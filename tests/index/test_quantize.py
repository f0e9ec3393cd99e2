"""Stored vectors: each kind's error is what its arithmetic says."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.errors import InputError
from pagefacets.index.quantize import QuantizedRows, codec

KINDS = ["float32", "float16", "int8", "binary"]


def unit(count, dim, seed):
    rows = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=1)


def allowed(kind, rows):
    """How far each number may be off: half a step of the kind."""
    if kind == "float32":
        return torch.zeros_like(rows)
    if kind == "float16":
        return rows.abs() * 2**-11 + 2**-25
    if kind == "int8":
        return rows.abs().amax(1, keepdim=True).expand_as(rows) / 254 + 1e-7
    return (rows.abs() - rows.shape[1] ** -0.5).abs() + 1e-6


@given(st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 40), st.integers(0, 1000))
def test_what_comes_back_is_half_a_step_off_at_most(kind, count, dim, seed):
    rows = unit(count, dim, seed)
    stored = codec(kind, dim).encode(rows)
    assert stored.dtype == torch.uint8
    assert stored.shape == (count, codec(kind, dim).stride)
    assert stored.is_contiguous()
    back = codec(kind, dim).decode(stored)
    assert back.dtype == torch.float32
    assert bool(((back - rows).abs() <= allowed(kind, rows)).all())


@given(st.sampled_from(KINDS), st.integers(1, 12), st.integers(1, 40), st.data())
def test_a_slice_of_stored_rows_is_the_slice_of_the_decoded(kind, count, dim, data):
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    made = codec(kind, dim)
    stored = made.encode(unit(count, dim, 0))
    held = QuantizedRows(stored, made)
    assert held.shape == (count, dim)
    assert held.nbytes == count * made.stride
    torch.testing.assert_close(held[start:stop], made.decode(stored)[start:stop], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_storing_again_changes_nothing(kind):
    made = codec(kind, 24)
    stored = made.encode(unit(5, 24, 3))
    assert torch.equal(made.encode(made.decode(stored)), stored)


def test_sizes():
    assert [codec(kind, 128).stride for kind in KINDS] == [512, 256, 132, 16]
    assert codec("binary", 129).stride == 17


def test_bits_come_most_significant_first_and_zero_counts_as_positive():
    row = torch.tensor([[1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 0.0, -0.5]]) / 3
    stored = codec("binary", 9).encode(row)
    assert stored.tolist() == [[0b10000001, 0]]
    np.testing.assert_allclose(codec("binary", 9).decode(stored), [[1 / 3, *[-1 / 3] * 6, 1 / 3, -1 / 3]])


def test_an_int8_row_of_zeros_stays_zero():
    made = codec("int8", 4)
    assert made.decode(made.encode(torch.zeros(2, 4))).tolist() == [[0.0] * 4] * 2


def test_half_precision_input_is_taken():
    rows = unit(3, 10, 0)
    for kind in KINDS:
        made = codec(kind, 10)
        assert torch.equal(made.encode(rows.half()), made.encode(rows.half().float()))


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="float32, float16, int8, binary, got 'float8'"):
        codec("float8", 4)
