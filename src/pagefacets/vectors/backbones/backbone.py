"""Qwen vision-language models as encoders use them: their last hidden states, and nothing behind."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.extras import require
from pagefacets.vectors.backbones.adapters import adapter_of, base_of
from pagefacets.vectors.backbones.pixels import ShapedPixels
from pagefacets.vectors.backbones.sequences import Positions, Prompt, Prompter, stack
from pagefacets.vectors.backbones.weights import filled, read_weights
from pagefacets.vectors.checkpoints import checkpoint_file, read_json

__all__ = ["Architecture", "Backbone", "Source", "States"]

Architecture = Literal["Qwen2VL", "Qwen2_5_VL", "Qwen3VL"]

_DTYPES = ("float32", "bfloat16", "float16")
_KINDS: dict[Architecture, str] = {"Qwen2VL": "qwen2_vl", "Qwen2_5_VL": "qwen2_5_vl", "Qwen3VL": "qwen3_vl"}


class Source(NamedTuple):
    """Where the weights are: a checkpoint, its revision, and the adapter within it where there is one."""

    name: str
    revision: str | None = None
    base: str | None = None
    folder: str = ""
    task: str | None = None
    # How the names begin of weights that lie in the checkpoint and are not of the model.
    apart: tuple[str, ...] = ()


class States(NamedTuple):
    """The hidden states of each prompt's own tokens, and the attention of the last layer where it was kept."""

    rows: list[Float[Tensor, "N h"]]
    attention: Float[Tensor, "B H S S"] | None


@final
class Backbone:
    """A frozen model with its tokenizer and image processor, from files that are already here or on a hub.

    The weights are loaded when they are first needed.
    """

    def __init__(
        self,
        source: Source,
        architecture: Architecture,
        *,
        positions: Positions = "grid",
        bidirectional: bool = False,
        keep_attention: bool = False,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = dtype or ("float32" if self.device.type == "cpu" else "bfloat16")
        if self.dtype not in _DTYPES:
            raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}")
        self.base = source.base or base_of(source.name, revision=source.revision) or source.name
        self._source = source
        self._architecture: Architecture = architecture
        self._positions: Positions = positions
        self._bidirectional = bidirectional
        self._keep_attention = keep_attention
        self._appended: list[tuple[str, int]] = []
        self._transformers = require("transformers", extra="hub")
        told = read_json(checkpoint_file(self.base, "config.json", revision=self._base_revision))
        kind = getattr(self._transformers, f"{architecture}Config")
        self._config = kind.from_dict(_of_kind(told, architecture, self.base))
        text = self._config.get_text_config()
        self.dim: int = text.hidden_size
        self._vocabulary: int = text.vocab_size
        seen = read_json(checkpoint_file(source.name, "preprocessor_config.json", revision=source.revision))
        pixels = ShapedPixels.of(seen, min_pixels=min_pixels, max_pixels=max_pixels)
        self.min_pixels, self.max_pixels = pixels.min_pixels, pixels.max_pixels
        tokenizer = self._transformers.AutoTokenizer.from_pretrained(source.name, revision=source.revision)
        self.prompter = Prompter(tokenizer, pixels, longest=text.max_position_embeddings)
        self._padding: int = tokenizer.pad_token_id

    def tokens(self, pattern: str, count: int, *, follow: bool = False) -> tuple[int, ...]:
        """The ids of the tokens `pattern` names for {i} from 0, to be put behind a prompt.

        With `follow`, tokens that the tokenizer lacks are the ones behind its last, which the model must have.
        """
        names = [pattern.replace("{i}", str(i)) for i in range(count)]
        known = self.prompter.added
        if names[0] in known and names[-1] in known:
            return tuple(known[name] for name in names)
        first = self.prompter.size
        if not follow or names[0] in known or first + count > self._vocabulary:
            raise InputError(
                f"{self._source.name} has no {count} tokens {names[0]} to {names[-1]}: is it a checkpoint of this "
                "family?"
            )
        return tuple(range(first, first + count))

    def append_tokens(self, tensor: str, count: int) -> tuple[int, ...]:
        """Ids for the first rows of a tensor that lies apart in the checkpoint, to be put behind a prompt."""
        first = self._vocabulary + sum(rows for _, rows in self._appended)
        self._appended.append((tensor, count))
        return tuple(range(first, first + count))

    @torch.no_grad()
    def states(self, prompts: Sequence[Prompt]) -> States:
        """The last hidden states of every prompt."""
        read = stack(prompts, self._positions, padding=self._padding)
        mask = read.attention_mask.to(self.device)
        pixels, shapes = read.pixel_values, read.image_grid_thw
        kept: list[Tensor] = []
        hook = None
        if self._keep_attention:
            last = self._model.language_model.layers[-1].self_attn
            hook = last.register_forward_hook(lambda _module, _inputs, output: kept.append(output[1]))
        try:
            hidden = self._model(
                input_ids=read.input_ids.to(self.device),
                attention_mask=self._open(mask) if self._bidirectional else mask,
                position_ids=read.position_ids.to(self.device),
                pixel_values=None if pixels is None else pixels.to(self.device, self._model.dtype),
                image_grid_thw=None if shapes is None else shapes.to(self.device),
                use_cache=False,
            ).last_hidden_state
        finally:
            if hook is not None:
                hook.remove()
        rows = [states[: len(prompt)].float() for states, prompt in zip(hidden, prompts, strict=True)]
        return States(rows, kept[0].float() if kept else None)

    @property
    def _base_revision(self) -> str | None:
        return self._source.revision if self.base == self._source.name else None

    @cached_property
    def _model(self) -> Any:
        source = self._source
        weights = read_weights(self.base, revision=self._base_revision)
        apart = {key: weights.pop(key) for key in [*weights] if key.startswith(source.apart)} if source.apart else {}
        appended = self._appended_rows(apart)
        kind = self._architecture
        dtype = getattr(torch, self.dtype)
        model = filled(self.base, kind, f"{kind}Model", self._config, weights, dtype=dtype)
        if self.base != source.name or source.folder:
            adapter = adapter_of(source.name, folder=source.folder, task=source.task, revision=source.revision)
            if not adapter.add_to(dict(model.named_parameters()), ignore=source.apart):
                raise InputError(f"the adapter of {source.name} changes nothing: is it of this family?")
        table = model.get_input_embeddings()
        grown = torch.cat((table.weight, *(rows.to(table.weight.dtype) for rows in appended)))
        table.weight = torch.nn.Parameter(grown, requires_grad=False)
        layers = model.language_model.layers
        if self._bidirectional:
            for layer in layers:
                layer.self_attn.is_causal = False
        if self._keep_attention:
            # The last layer, and only it, computes attention in the way that leaves its weights behind.
            last = layers[-1].self_attn
            last.config = copy.deepcopy(last.config)
            last.config._attn_implementation = "eager"
        return model.eval().requires_grad_(False).to(self.device)

    def _appended_rows(self, apart: dict[str, Tensor]) -> list[Tensor]:
        rows = []
        for tensor, count in self._appended:
            found = apart.get(tensor)
            if found is None or found.ndim != 2 or found.shape[0] < count or found.shape[1] != self.dim:
                told = "no such tensor" if found is None else f"one of shape {tuple(found.shape)}"
                raise InputError(
                    f"{self.base} has {told} as {tensor!r}, where at least {count} tokens of dimension {self.dim} are "
                    "expected: name the tensor that holds them"
                )
            rows.append(found[:count])
        return rows

    def _open(self, mask: Tensor) -> Float[Tensor, "B 1 S S"]:
        """A mask by which every token sees every other of its own prompt."""
        dtype = getattr(torch, self.dtype)
        closed = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask == 0, torch.finfo(dtype).min)
        return closed[:, None, None].expand(-1, 1, mask.shape[1], -1)


def _of_kind(described: dict[str, Any], architecture: Architecture, name: str) -> dict[str, Any]:
    kind = _KINDS[architecture]
    # Jina-v4 calls its Qwen2.5-VL by a name of its own.
    if described.get("model_type") not in (kind, "jina_embeddings_v4"):
        raise InputError(
            f"{name} is a {described.get('model_type')!r} model, but this family is built on {kind!r}: pass the "
            "family= that the checkpoint belongs to"
        )
    return {**described, "model_type": kind}
