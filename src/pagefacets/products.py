"""Exact float32 inner products between rows, by the fastest kernel the device has."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["EXPONENT", "affine", "apply", "best_column", "exponential_", "gram", "one_thread"]


def _is_intel() -> bool:
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        described = platform.processor()
    return "GenuineIntel" in described


# PyTorch sends float32 products and exponentials to MKL, which is the fastest on Intel's processors and leaves AVX-512
# unused on others. There, oneDNN's products, which PyTorch ships as well, and PyTorch's own power of two are faster.
# oneDNN's operator is not documented, so it is looked up rather than relied on.
_MKL = _is_intel()
_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn and not _MKL else None

# exponential_(x · EXPONENT) is e^x.
EXPONENT = 1.0 if _MKL else math.log2(math.e)

# glibc hands a freed block above its threshold back to the system, and fetching a page's score block again costs more
# than computing it. Freeing one larger block (never touched, so it costs nothing) raises that threshold for good.
torch.empty(1 << 22)


def gram(A: Float[Tensor, "*B m p"], B: Float[Tensor, "*B n p"]) -> Float[Tensor, "*B m n"]:
    """A Bᵀ: every row of A against every row of B."""
    if _onednn is not None and A.ndim == 2 and A.device.type == "cpu" and A.dtype == torch.float32:
        product: Tensor = _onednn(A, B, None, "none", [], "")
        return product
    return torch.matmul(A, B.mT)


def affine(X: Float[Tensor, "n p"], W: Float[Tensor, "m p"], b: Float[Tensor, " m"]) -> Float[Tensor, "n m"]:
    """X Wᵀ + b: a layer of a model, in float32 on a CPU."""
    if _onednn is not None:
        layer: Tensor = _onednn(X, W, b, "none", [], "")
        return layer
    return torch.nn.functional.linear(X, W, b)


def apply(A: Float[Tensor, "*B m n"], x: Float[Tensor, "*B n"]) -> Float[Tensor, "*B m"]:
    """A x, for one matrix or a batch of them."""
    if A.ndim == 2:
        return torch.mv(A, x)
    return torch.matmul(A, x.unsqueeze(-1)).squeeze(-1)


def exponential_(X: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Two or e to the power of X, in place: whichever is faster here."""
    return X.exp_() if _MKL else X.exp2_()


def best_column(S: Float[Tensor, "*B K N"]) -> Int[Tensor, "*B N"]:
    """For every column of S the row of its largest entry, the first among equals."""
    if S.ndim == 2 and S.device.type == "cpu":
        # PyTorch's own reduction over the first axis takes five times as long.
        return torch.from_numpy(S.numpy().argmax(axis=0))
    return S.mT.contiguous().argmax(-1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Products on one CPU thread inside the block: parallelism belongs to pages, and sums keep their order."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
