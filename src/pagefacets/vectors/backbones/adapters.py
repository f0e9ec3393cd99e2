"""LoRA and DoRA adapters, added to the weights they were trained for without a package that wraps every layer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.vectors.backbones.weights import canonical, tensors
from pagefacets.vectors.checkpoints import checkpoint_file, read_json

__all__ = ["Factors", "LoraAdapter", "adapter_of", "base_of"]

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_magnitude_vector)(?:\.(?P<task>[\w-]+))??(?:\.weight)?"
)
# What an adapter may ask for that is not added in here, and the value that asks for nothing.
_PLAIN = {"fan_in_fan_out": False, "lora_bias": False, "bias": "none"}


@final
@dataclass(frozen=True)
class Factors:
    """What an adapter does to one matrix: B A is added, and rows are set to trained lengths where there are some."""

    A: Float[Tensor, "r n"]
    B: Float[Tensor, "m s"]
    lengths: Tensor | None

    def added(self, weight: Float[Tensor, "m n"], scale: float) -> Float[Tensor, "m n"]:
        """W + s BA, formed in float32 and rounded once."""
        A, B = self.A.to(weight.device, torch.float32), self.B.to(weight.device, torch.float32)
        whole = weight.float() + scale * (B @ A)
        if self.lengths is not None:
            now = torch.linalg.vector_norm(whole, dim=1)
            whole = whole * (self.lengths.to(weight.device, torch.float32).flatten() / now).unsqueeze(1)
        return whole.to(weight.dtype)


@final
@dataclass(frozen=True)
class LoraAdapter:
    """An adapter as it lies on disk: factors to add to weights, and weights to replace."""

    name: str
    factors: Mapping[str, Factors]
    replaced: Mapping[str, Tensor]
    config: Mapping[str, Any]

    @classmethod
    def read(cls, name: str, weights: Path, config: Path, *, task: str | None = None) -> LoraAdapter:
        """Of an adapter with several tasks, the factors of `task` alone."""
        settings = read_json(config)
        if (kind := settings.get("peft_type") or "LORA") != "LORA":
            raise InputError(f"{config} is of the kind {kind}, and only LORA is added in here: {_MERGE}")
        for setting, plain in _PLAIN.items():
            if (settings.get(setting) or plain) != plain:
                raise InputError(
                    f"{config} asks for {setting}={settings[setting]!r}, which is not added in here: {_MERGE}"
                )
        parts: dict[str, dict[str, Tensor]] = {}
        replaced: dict[str, Tensor] = {}
        for key, tensor in tensors(weights):
            match = _PART.fullmatch(key)
            if match is None:
                target = canonical(key.replace(".modules_to_save.", "."))
                if target is not None:
                    replaced[target] = tensor
                continue
            if task is not None and match["task"] not in (task, None):
                continue
            target = canonical(match["module"] + ".weight")
            if target is not None:
                parts.setdefault(target, {})[match["part"]] = tensor
        halves = [target for target, found in parts.items() if not {"lora_A", "lora_B"} <= found.keys()]
        if halves or not (parts or replaced):
            told = f"only one of the two matrices of {halves[0]}" if halves else "no LoRA matrices"
            told += "" if task is None else f" for task {task!r}"
            raise InputError(f"{weights} holds {told}: it is not a whole adapter, download or save it again")
        factors = {
            target: Factors(found["lora_A"], found["lora_B"], found.get("lora_magnitude_vector"))
            for target, found in parts.items()
        }
        return cls(name, factors, replaced, settings)

    def scale(self, module: str) -> float:
        """What B A is multiplied by at a module."""
        rank = _by_pattern(self.config.get("rank_pattern"), module, self.config["r"])
        alpha = _by_pattern(self.config.get("alpha_pattern"), module, self.config["lora_alpha"])
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    @torch.no_grad()
    def add_to(self, weights: Mapping[str, Tensor], *, ignore: tuple[str, ...] = ()) -> int:
        """Add the adapter to weights in place; returns how many it changed.

        `ignore` says how the names begin of weights that are missing on purpose.
        """
        changed = 0
        for target, factors in self.factors.items():
            if target.startswith(ignore):
                continue
            weight = weights.get(_present(target, weights))
            A, B = factors.A, factors.B
            if weight is None or weight.shape != (B.shape[0], A.shape[1]) or A.shape[0] != B.shape[1]:
                found = "no such weight" if weight is None else f"a weight of shape {tuple(weight.shape)}"
                raise InputError(
                    f"the adapter {self.name} changes {target} by matrices of shape {tuple(B.shape)} and "
                    f"{tuple(A.shape)}, but its base has {found}: pass base= with the checkpoint it was trained on"
                )
            weight.copy_(factors.added(weight, self.scale(target.removesuffix(".weight"))))
            changed += 1
        return changed


_MERGE = "merge the adapter into its base with peft (merge_and_unload) and pass the folder of the merged model"


def base_of(name: str, *, revision: str | None = None) -> str | None:
    """The checkpoint that the adapter `name` was trained on; None where `name` is no adapter."""
    config = checkpoint_file(name, _CONFIG, revision=revision, optional=True)
    if config is None:
        return None
    base: str | None = read_json(config).get("base_model_name_or_path")
    if not base:
        raise InputError(f"{config} names no base model: pass base= with the checkpoint that it was trained on")
    return base


def adapter_of(name: str, *, folder: str = "", task: str | None = None, revision: str | None = None) -> LoraAdapter:
    """The adapter in a checkpoint, or in a folder of it."""
    where = f"{folder}/" if folder else ""
    weights, config = (checkpoint_file(name, where + file, revision=revision) for file in (_WEIGHTS, _CONFIG))
    return LoraAdapter.read(name, weights, config, task=task)


def _present(target: str, weights: Mapping[str, Tensor]) -> str:
    """transformers has dropped a level of SigLIP's modules which older adapters still name."""
    return target if target in weights else target.replace(".vision_model.", ".")


def _by_pattern(patterns: Mapping[str, Any] | None, module: str, default: float) -> float:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return float(value)
    return float(default)
