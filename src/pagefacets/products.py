"""Exact float32 inner products between rows, by the fastest kernel the device has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["apply", "gram", "one_thread"]

# PyTorch sends float32 products to MKL, which leaves AVX-512 unused on AMD processors; oneDNN, which PyTorch ships
# as well, does not, and is never slower elsewhere. The operator is PyTorch's own but not documented, so it is looked
# up rather than relied on.
_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn else None

# glibc hands a freed block above its threshold back to the system, and fetching a page's score block again costs more
# than computing it. Freeing one larger block (never touched, so it costs nothing) raises that threshold for good.
torch.empty(1 << 22)


def gram(A: Float[Tensor, "*B m p"], B: Float[Tensor, "*B n p"]) -> Float[Tensor, "*B m n"]:
    """A Bᵀ: every row of A against every row of B."""
    if _onednn is not None and A.ndim == 2 and A.device.type == "cpu" and A.dtype == torch.float32:
        product: Tensor = _onednn(A, B, None, "none", [], "")
        return product
    return torch.matmul(A, B.mT)


def apply(A: Float[Tensor, "*B m n"], x: Float[Tensor, "*B n"]) -> Float[Tensor, "*B m"]:
    """A x, for one matrix or a batch of them."""
    if A.ndim == 2:
        return torch.mv(A, x)
    return torch.matmul(A, x.unsqueeze(-1)).squeeze(-1)


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
