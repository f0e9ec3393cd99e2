"""What the small files of a retriever's checkpoint say, before any weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pagefacets.errors import FileFormatError, InputError
from pagefacets.vectors.backbones.pixels import ShapedPixels, SquarePixels
from pagefacets.vectors.backbones.prompts import PROMPTS, Prompt, Template
from pagefacets.vectors.checkpoints import checkpoint_file, read_json

__all__ = ["Parts"]

# Family -> the model_type of the language model with vision that it is built on.
_BUILT_ON = {"colpali": "paligemma", "colqwen2": "qwen2_vl", "colqwen2.5": "qwen2_5_vl", "jina-v4": "qwen2_5_vl"}
# Where an adapter lies, matrices first.
_ADAPTER = ("adapter_model.safetensors", "adapter_config.json")
_JINA_ADAPTER = ("adapters/adapter_model.safetensors", "adapters/adapter_config.json")
# What colpali-engine projects to; its config.json does not say it.
_DIM = 128


@dataclass(frozen=True)
class Parts:
    """A checkpoint but for its weights: `base` holds those, and `adapter` names the files to add to them."""

    base: str
    base_revision: str | None
    adapter: tuple[str, str] | None
    vlm_config: Mapping[str, Any]
    dim: int
    prompt: Prompt
    tokenizer: Tokenizer
    template: Template
    pixels: ShapedPixels | SquarePixels

    @classmethod
    def read(
        cls,
        name: str,
        family: str,
        *,
        revision: str | None,
        base: str | None,
        min_pixels: int | None,
        max_pixels: int | None,
    ) -> Parts:
        adapter, base, base_revision = _base(name, family, revision, base)
        described = read_json(checkpoint_file(base, "config.json", revision=base_revision))
        vlm_config = {**described.get("vlm_config", described), "model_type": _model_type(base, described, family)}
        processor = _optional(name, "processor_config.json", revision)
        prompt = PROMPTS[family]
        if "vlm_config" in described:
            prompt = _of_transformers(prompt, family, processor)
        tokenizer = _tokenizer(checkpoint_file(name, "tokenizer.json", revision=revision))
        image = int(vlm_config.get("image_token_id") or vlm_config.get("image_token_index") or -1)
        template = Template.of(prompt, tokenizer, image=image, place=name)
        settings = _optional(name, "preprocessor_config.json", revision) or processor.get("image_processor")
        if settings is None:
            raise InputError(
                f"{name} holds no preprocessor_config.json: it is not a whole checkpoint, download it again"
            )
        pixels: ShapedPixels | SquarePixels
        if family == "colpali":
            if (min_pixels, max_pixels) != (None, None):
                raise InputError(f"{name} scales every page to one square: leave out the bounds on its pixels")
            pixels = SquarePixels.of(settings, int(vlm_config["vision_config"]["patch_size"]))
        else:
            pixels = ShapedPixels.of(settings, min_pixels=min_pixels, max_pixels=max_pixels)
        dim = described.get("embedding_dim") or described.get("multi_vector_projector_dim") or _DIM
        return cls(base, base_revision, adapter, vlm_config, int(dim), prompt, tokenizer, template, pixels)


def _base(
    name: str, family: str, revision: str | None, base: str | None
) -> tuple[tuple[str, str] | None, str, str | None]:
    """The files of the adapter, where the weights are that it changes, and their revision."""
    if family == "jina-v4":
        return _JINA_ADAPTER, name, revision
    config = checkpoint_file(name, "adapter_config.json", revision=revision, optional=True)
    if config is None:
        if base is not None:
            raise InputError(f"{name} holds no adapter_config.json, so it has no base: leave out base={base!r}")
        return None, name, revision
    if base is not None:
        return _ADAPTER, base, None
    settings = read_json(config)
    return _ADAPTER, str(settings["base_model_name_or_path"]), settings.get("revision")


def _model_type(base: str, described: Mapping[str, Any], family: str) -> str:
    found = described.get("vlm_config", described).get("model_type")
    expected = _BUILT_ON[family]
    # Jina's own configuration class has no model_type of its own in older exports.
    if found != expected and not (family == "jina-v4" and found in (None, "jina_embeddings_v4")):
        raise InputError(f"{base} is a {found} model, but family {family!r} is built on {expected}: check the family")
    return expected


def _of_transformers(prompt: Prompt, family: str, processor: Mapping[str, Any]) -> Prompt:
    """The prompt that the processor of transformers writes for the same family, which differs in small ways."""
    visual = processor.get("visual_prompt_prefix")
    if family == "colpali":
        page = f"<image><bos>{visual or 'Describe the image.'}\n"
        return replace(prompt, page=page, query_prefix=processor.get("query_prefix") or "Question: ")
    prefix = processor.get("query_prefix") or prompt.query_prefix
    return replace(prompt, page=visual or prompt.page, query_prefix=prefix, after_query="\n")


def _tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers package raises bare Exception
        raise FileFormatError(f"{path} is no tokenizer ({error}): download or save it again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _optional(name: str, file: str, revision: str | None) -> dict[str, Any]:
    path = checkpoint_file(name, file, revision=revision, optional=True)
    return {} if path is None else read_json(path)
