"""LoRA adapters merged into the weights they were trained for, without a package that wraps every layer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor, nn

from pagefacets.errors import InputError
from pagefacets.vectors.backbones.weights import canonical
from pagefacets.vectors.checkpoints import checkpoint_file, read_json

__all__ = ["base_of", "merge_adapter"]

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PART = re.compile(r"\.(lora_A|lora_B|lora_magnitude_vector)(?:\.([\w-]+))??(?:\.weight)?$")
# What an adapter may ask for beyond two factors and a magnitude, and the value that asks for nothing.
_UNSUPPORTED = {"rank_pattern": {}, "alpha_pattern": {}, "fan_in_fan_out": False, "modules_to_save": None}


def base_of(name: str, *, revision: str | None = None) -> str | None:
    """The checkpoint that the adapter `name` was trained on; None where `name` is no adapter."""
    config = checkpoint_file(name, _CONFIG, revision=revision, optional=True)
    if config is None:
        return None
    base: str | None = read_json(config).get("base_model_name_or_path")
    if not base:
        raise InputError(f"{config} names no base model: pass base= with the checkpoint that it was trained on")
    return base


@torch.no_grad()
def merge_adapter(
    model: nn.Module,
    name: str,
    *,
    folder: str = "",
    task: str | None = None,
    revision: str | None = None,
    ignore: tuple[str, ...] = (),
) -> int:
    """Add the adapter of the checkpoint `name` to the weights of `model`; returns how many matrices it changed.

    `folder` is where in the checkpoint the adapter lies, `task` which of its factors to take where it holds several,
    `ignore` how the names begin of modules that `model` lacks on purpose. Every other factor must find its matrix.
    """
    where = f"{folder}/" if folder else ""
    config: dict[str, Any] = read_json(checkpoint_file(name, where + _CONFIG, revision=revision))
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        raise InputError(f"the adapter of {name} is of the kind {kind}, and only LORA can be merged: merge it first")
    for option, nothing in _UNSUPPORTED.items():
        if config.get(option) not in (nothing, None, [], {}, False):
            raise InputError(f"the adapter of {name} sets {option}, which is not merged here: merge it with peft first")
    factors = _factors(checkpoint_file(name, where + _WEIGHTS, revision=revision), task, name)
    modules = dict(model.named_modules())
    changed = 0
    for path, parts in factors.items():
        if f"{path}.".startswith(ignore):
            continue
        module = modules.get(path)
        if not isinstance(module, nn.Linear) or not _fits(module.weight, parts):
            raise InputError(
                f"the adapter of {name} changes {path}, which its base does not have in that shape: pass base= with "
                "the checkpoint that it was trained on"
            )
        module.weight.copy_(_merged(module.weight, parts, config))
        changed += 1
    if not changed:
        raise InputError(f"the adapter of {name} changes nothing{'' if task is None else f' for the task {task!r}'}")
    return changed


def _factors(path: Path, task: str | None, name: str) -> dict[str, dict[str, Tensor]]:
    factors: dict[str, dict[str, Tensor]] = {}
    with safe_open(path, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118
            part = _PART.search(key)
            if part is None:
                raise InputError(f"the adapter of {name} holds {key}, which is no factor of LoRA: merge it first")
            if part[2] is not None and part[2] != task:
                continue
            module = str(canonical(f"{key[: part.start()]}.weight")).removesuffix(".weight")
            factors.setdefault(module, {})[part[1]] = file.get_tensor(key)
    return factors


def _fits(weight: Tensor, parts: dict[str, Tensor]) -> bool:
    return {"lora_A", "lora_B"} <= parts.keys() and weight.shape == (len(parts["lora_B"]), parts["lora_A"].shape[1])


def _merged(weight: Tensor, parts: dict[str, Tensor], config: dict[str, Any]) -> Float[Tensor, "m n"]:
    """W + s BA, with its rows set to the trained lengths where the adapter keeps them (DoRA)."""
    A, B = (parts[part].to(weight.device, torch.float32) for part in ("lora_A", "lora_B"))
    rank = A.shape[0]
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    sum_ = weight.float() + scale * (B @ A)
    if (magnitude := parts.get("lora_magnitude_vector")) is not None:
        lengths = torch.linalg.vector_norm(sum_, dim=1)
        sum_ = sum_ * (magnitude.to(weight.device, torch.float32).flatten() / lengths).unsqueeze(1)
    merged: Tensor = sum_.to(weight.dtype)
    return merged
