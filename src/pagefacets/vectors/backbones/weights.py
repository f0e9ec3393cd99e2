"""Loads the weights of a retriever: whichever names its files use, its adapter added in, and nothing left to chance.

The same model lies on hubs under many names: as colpali-engine saved it with this or that transformers, as
transformers' own ...ForRetrieval, as a base with a LoRA adapter beside it. All are read into a language model with
vision (`vlm`) and one linear projection, by names brought into one form here. A weight that is missing, unknown or of
another shape is an error, never a random number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pagefacets.errors import FileFormatError, InputError
from pagefacets.extras import require
from pagefacets.vectors.checkpoints import checkpoint_file, read_json

__all__ = ["Adapter", "Retriever", "canonical", "filled", "load_retriever", "read_weights", "tensors"]

_HEADS = ("custom_text_proj", "embedding_proj_layer", "multi_vector_projector")
# Heads for other uses, which multi-vector retrieval never calls.
_UNUSED = ("lm_head", "language_model.lm_head", "single_vector_projector")
_PARTS = r"(?=(?:language_model|visual|vision_tower|multi_modal_projector)\.)"
_MODELS = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "paligemma": "PaliGemmaModel"}
_CONFIGS = {"qwen2_vl": "Qwen2VLConfig", "qwen2_5_vl": "Qwen2_5_VLConfig", "paligemma": "PaliGemmaConfig"}


@runtime_checkable
class Adapter(Protocol):
    """What changes the weights of a base."""

    @property
    def replaced(self) -> Mapping[str, Tensor]:
        """Weights that take the place of the base's own."""
        ...

    def add_to(self, weights: Mapping[str, Tensor]) -> int:
        """Add to the base's weights, in place."""
        ...


class Retriever(nn.Module):
    """A vision-language model and the projection of its last hidden states."""

    def __init__(self, vlm: Any, projection: nn.Linear) -> None:
        super().__init__()
        self.vlm = vlm
        self.projection = projection

    @property
    def last_attention(self) -> nn.Module:
        """The self-attention of the last decoder layer."""
        layer: nn.Module = self.vlm.language_model.layers[-1].self_attn
        return layer

    def forward(self, **inputs: Any) -> Tensor:
        """One vector for each token, of unit length, in float32; rows of padding mean nothing."""
        hidden = self.vlm(**inputs, use_cache=False).last_hidden_state
        return nn.functional.normalize(self.projection(hidden).float(), dim=-1)


def canonical(key: str) -> str | None:
    """The one name of a weight, whoever saved it; None where retrieval has no use for it."""
    key = key.removeprefix("base_model.model.").removeprefix("vlm.")
    key = re.sub(rf"^(?:model\.)+{_PARTS}", "", key)
    key = re.sub(r"^model\.(?=(?:layers|embed_tokens|norm)\.)", "language_model.", key)
    key = re.sub(r"^language_model\.model\.", "language_model.", key)
    stem, _, rest = key.removeprefix("model.").partition(".")
    if stem in _HEADS:
        return f"projection.{rest}"
    if key.removeprefix("model.").startswith(tuple(f"{head}." for head in _UNUSED)):
        return None
    return key


def load_retriever(
    name: str,
    config: Mapping[str, Any],
    *,
    revision: str | None,
    adapter: Adapter | None,
    dtype: torch.dtype,
    device: torch.device,
    attention: str,
) -> Retriever:
    """The model of a checkpoint whose language model with vision is described by `config`, ready to run."""
    weights = read_weights(name, revision=revision)
    if adapter is not None:
        weights.update(adapter.replaced)
    head = {key: weights.pop(f"projection.{key}") for key in ("weight", "bias") if f"projection.{key}" in weights}
    if "weight" not in head:
        raise InputError(
            f"{name} has no projection ({', '.join(_HEADS)}): it is not a multi-vector retriever, or it is the bare "
            "base of one, so pass base= with the checkpoint that the adapter was trained on"
        )
    vlm = _vlm(name, config, weights, dtype=dtype, attention=attention)
    projection = nn.Linear(head["weight"].shape[1], head["weight"].shape[0], bias="bias" in head, dtype=dtype)
    with torch.no_grad():
        for key, tensor in head.items():
            getattr(projection, key).copy_(tensor)
    retriever = Retriever(vlm, projection).to(device).eval().requires_grad_(False)
    if adapter is not None:
        named = {key.removeprefix("vlm."): tensor for key, tensor in retriever.named_parameters()}
        adapter.add_to(named)
    return retriever


def read_weights(name: str, *, revision: str | None = None) -> dict[str, Tensor]:
    """Every weight of a checkpoint's safetensors files under its one name."""
    index = checkpoint_file(name, "model.safetensors.index.json", revision=revision, optional=True)
    files = ["model.safetensors"] if index is None else sorted(set(read_json(index)["weight_map"].values()))
    weights: dict[str, Tensor] = {}
    for file in files:
        path = checkpoint_file(name, file, revision=revision)
        for key, tensor in tensors(path):
            target = canonical(key)
            if target is not None:
                weights[target] = tensor
    return weights


def _vlm(
    name: str, config: Mapping[str, Any], weights: dict[str, Tensor], *, dtype: torch.dtype, attention: str
) -> Any:
    transformers = require("transformers", extra="hub")
    kind = config.get("model_type")
    if kind not in _MODELS:
        raise InputError(f"{name} is built on a {kind!r} model, expected one of {', '.join(_MODELS)}")
    described = getattr(transformers, _CONFIGS[kind]).from_dict(dict(config))
    return filled(name, kind, _MODELS[kind], described, weights, dtype=dtype, attention=attention)


def filled(
    name: str,
    kind: str,
    model: str,
    config: Any,
    weights: dict[str, Tensor],
    *,
    dtype: torch.dtype,
    attention: str = "sdpa",
) -> Any:
    """The model of transformers called `model` with just these weights; `name` and `kind` are for errors."""
    transformers = require("transformers", extra="hub")
    with _quiet():
        made, found = getattr(transformers, model).from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    for what, keys in (("lacks", found["missing_keys"]), ("has unknown", found["unexpected_keys"])):
        if keys:
            raise InputError(
                f"{name} {what} weights of its own {kind} model, {len(keys)} such as {min(keys)}: it is damaged or of "
                "another layout, download or save it again"
            )
    if found["mismatched_keys"]:
        key, stored, expected = min(found["mismatched_keys"])
        raise InputError(
            f"{name} stores {key} in shape {tuple(stored)} but its config.json asks for {tuple(expected)}: the two are "
            "of different models, download or save it again"
        )
    return made


def tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
                yield key, file.get_tensor(key)
    except SafetensorError as error:
        raise FileFormatError(f"{path} is no whole safetensors file ({error}): download or save it again") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers shows a bar, and logs keys that are not in place, which become an error here."""
    logging = require("transformers.utils.logging", extra="hub")

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
