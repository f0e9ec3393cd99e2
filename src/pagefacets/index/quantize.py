"""How facets are stored: as float32, float16, int8 with a scale for each vector, or one bit per number.

A codec turns (K, p) unit rows into K rows of `stride` bytes and back. docs/index-format.md is the norm.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final, get_args

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.interaction import StoredRows

__all__ = ["Codec", "Quantization", "QuantizedRows", "codec"]

Quantization: TypeAlias = Literal["float32", "float16", "int8", "binary"]


@dataclass(frozen=True)
class Codec(ABC):
    """One way to store rows of `dim` numbers."""

    name: ClassVar[str]
    dim: int

    @property
    @abstractmethod
    def stride(self) -> int:
        """Bytes of one vector."""

    @abstractmethod
    def encode(self, rows: Float[Tensor, "K p"]) -> UInt8[Tensor, "K stride"]:
        """The bytes of each row."""

    @abstractmethod
    def decode(self, stored: UInt8[Tensor, "K stride"]) -> Float[Tensor, "K p"]:
        """The rows in float32."""


@final
class _Float32(Codec):
    name = "float32"

    @property
    def stride(self) -> int:
        return 4 * self.dim

    def encode(self, rows: Float[Tensor, "K p"]) -> UInt8[Tensor, "K stride"]:
        return rows.float().contiguous().view(torch.uint8)

    def decode(self, stored: UInt8[Tensor, "K stride"]) -> Float[Tensor, "K p"]:
        return stored.view(torch.float32)


@final
class _Float16(Codec):
    name = "float16"

    @property
    def stride(self) -> int:
        return 2 * self.dim

    def encode(self, rows: Float[Tensor, "K p"]) -> UInt8[Tensor, "K stride"]:
        return rows.half().contiguous().view(torch.uint8)

    def decode(self, stored: UInt8[Tensor, "K stride"]) -> Float[Tensor, "K p"]:
        return stored.view(torch.float16).float()


@final
class _Int8(Codec):
    """Each row over its largest magnitude, in 127ths; the scale follows as float32."""

    name = "int8"

    @property
    def stride(self) -> int:
        return self.dim + 4

    def encode(self, rows: Float[Tensor, "K p"]) -> UInt8[Tensor, "K stride"]:
        whole = rows.float()
        scale = whole.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
        steps = (whole / scale).round().to(torch.int8)
        return torch.cat([steps.view(torch.uint8), scale.view(torch.uint8)], dim=1)

    def decode(self, stored: UInt8[Tensor, "K stride"]) -> Float[Tensor, "K p"]:
        # A copy, because float32 numbers cannot be read where the row begins at an odd byte.
        scale = stored[:, self.dim :].clone(memory_format=torch.contiguous_format).view(torch.float32)
        return stored.view(torch.int8)[:, : self.dim].float().mul_(scale)


@final
class _Binary(Codec):
    """The sign of each number, most significant bit first; a stored row stands for ±1/√p."""

    name = "binary"

    @property
    def stride(self) -> int:
        return -(-self.dim // 8)

    def encode(self, rows: Float[Tensor, "K p"]) -> UInt8[Tensor, "K stride"]:
        return torch.from_numpy(np.packbits((rows >= 0).numpy(), axis=1))

    def decode(self, stored: UInt8[Tensor, "K stride"]) -> Float[Tensor, "K p"]:
        eights = _signs(self.dim).index_select(0, stored.flatten().int())
        return eights.view(stored.shape[0], 8 * self.stride)[:, : self.dim]


@functools.cache
def _signs(dim: int) -> Float[Tensor, "256 8"]:
    """What each byte of a binary row stands for."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    return torch.from_numpy(bits).float().mul_(2).sub_(1).mul_(dim**-0.5)


_CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (_Float32, _Float16, _Int8, _Binary)}


def codec(name: str, dim: int) -> Codec:
    """The codec called `name` for vectors of `dim` numbers."""
    if name not in _CODECS:
        raise InputError(f"facets can be stored as {', '.join(get_args(Quantization))}, got {name!r}")
    return _CODECS[name](dim)


@final
class QuantizedRows(StoredRows):
    """Stored rows that are decoded block by block when they are scored: a slice of it is a float32 tensor."""

    def __init__(self, stored: UInt8[Tensor, "R stride"], codec: Codec) -> None:
        self.stored, self.codec = stored, codec
        self.shape = (stored.shape[0], codec.dim)
        self.device = stored.device

    def __getitem__(self, rows: slice) -> Float[Tensor, "S p"]:
        return self.codec.decode(self.stored[rows])

    @property
    def nbytes(self) -> int:
        return self.stored.numel()
