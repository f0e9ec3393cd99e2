"""Which encoder reads a checkpoint: the table of known hub ids, and what a folder's own files say.

A family is a way to load and to prompt; `FAMILIES` names the class that does it, called as `Class(name, family=...,
**options)`. `CHECKPOINTS` names the family of hub ids, `ARCHITECTURES` and `BASES` that of any other checkpoint by its
`config.json` or its adapter's base.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, overload

from pagefacets.errors import InputError
from pagefacets.extras import require
from pagefacets.vectors.encoder import Encoder

__all__ = ["checkpoint_file", "family_of", "load", "read_json"]

_HUB = "pagefacets.vectors.hub:HubEncoder"
_SINGLE = "pagefacets.vectors.single:SingleVectorEncoder"

# Family -> the class that loads it.
FAMILIES: dict[str, str] = {
    "colpali": _HUB,
    "colqwen2": _HUB,
    "colqwen2.5": _HUB,
    "jina-v4": _HUB,
    "vlm2vec": _SINGLE,
    "vlm2vec-v2": _SINGLE,
    "unime-v2": _SINGLE,
    "qwen3-vl-embedding": _SINGLE,
    "jina-v4-single": _SINGLE,
    "agc": "pagefacets.vectors.compact:AGCEncoder",
    "metaembed": "pagefacets.vectors.compact:MetaEmbedEncoder",
    "mteb": "pagefacets.vectors.wrapped:MtebEncoder",
}

# Hub id -> family.
CHECKPOINTS: dict[str, str] = {
    "vidore/colpali-v1.2": "colpali",
    "vidore/colpali-v1.3": "colpali",
    "vidore/colpali-v1.3-merged": "colpali",
    "vidore/colpali-v1.2-hf": "colpali",
    "vidore/colpali-v1.3-hf": "colpali",
    "vidore/colqwen2-v1.0": "colqwen2",
    "vidore/colqwen2-v1.0-merged": "colqwen2",
    "vidore/colqwen2-v1.0-hf": "colqwen2",
    "vidore/colqwen2.5-v0.1": "colqwen2.5",
    "vidore/colqwen2.5-v0.2": "colqwen2.5",
    "nomic-ai/colnomic-embed-multimodal-3b": "colqwen2.5",
    "nomic-ai/colnomic-embed-multimodal-7b": "colqwen2.5",
    "jinaai/jina-embeddings-v4": "jina-v4",
    "TIGER-Lab/VLM2Vec-Qwen2VL-2B": "vlm2vec",
    "VLM2Vec/VLM2Vec-V2.0": "vlm2vec-v2",
    "TianchengGu/UniME-V2-Qwen2VL-2B": "unime-v2",
    "Qwen/Qwen3-VL-Embedding-2B": "qwen3-vl-embedding",
    "Qwen/Qwen3-VL-Embedding-8B": "qwen3-vl-embedding",
    "hltcoe/AGC_qwen2.5-vl_colpali": "agc",
    "openbmb/VisRAG-Ret": "mteb",
}

# What `architectures` of a config.json says -> family.
ARCHITECTURES: dict[str, str] = {
    "ColPali": "colpali",
    "ColPaliForRetrieval": "colpali",
    "ColQwen2": "colqwen2",
    "ColQwen2ForRetrieval": "colqwen2",
    "ColQwen2_5": "colqwen2.5",
    "JinaEmbeddingsV4Model": "jina-v4",
}

# The base that an adapter names -> family, where the base is no folder to look into.
BASES: dict[str, str] = {
    "vidore/colpaligemma-3b-pt-448-base": "colpali",
    "vidore/colqwen2-base": "colqwen2",
    "vidore/colqwen2.5-base": "colqwen2.5",
    "nomic-ai/colqwen2.5-7B-base": "colqwen2.5",
    "Metric-AI/colqwen2.5-3b-base": "colqwen2.5",
    "tsystems/colqwen2.5-3b-base": "colqwen2.5",
}

# Whichever a checkpoint is, it has one of these.
_EACH_HAS = ("config.json", "adapter_config.json")

# File whose presence decides, where nothing above does -> family.
MARKERS: dict[str, str] = {}


def load(name: str, *, family: str | None = None, **options: Any) -> Encoder:
    """The encoder of a checkpoint, a hub id or a local folder, by its family or the one its files tell."""
    chosen = family_of(name, revision=options.get("revision")) if family is None else family
    if chosen not in FAMILIES:
        raise InputError(
            f"{name} was asked for as family {chosen!r}, which is not one of {', '.join(sorted(FAMILIES))}"
        )
    module, _, attribute = FAMILIES[chosen].partition(":")
    made: Encoder = getattr(import_module(module), attribute)(name, family=chosen, **options)
    return made


def family_of(name: str, *, revision: str | None = None) -> str:
    """The family of a checkpoint: known by its id, or told by its files."""
    if name in CHECKPOINTS:
        return CHECKPOINTS[name]
    adapter = checkpoint_file(name, "adapter_config.json", revision=revision, optional=True)
    if adapter is not None:
        base = str(read_json(adapter).get("base_model_name_or_path"))
        if base in BASES:
            return BASES[base]
        return family_of(base)
    config = checkpoint_file(name, "config.json", revision=revision, optional=True)
    architectures = [] if config is None else read_json(config).get("architectures") or []
    for architecture in architectures:
        if architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
    for marker, family in MARKERS.items():
        if checkpoint_file(name, marker, revision=revision, optional=True) is not None:
            return family
    told = f"of the architecture {architectures[0]}" if architectures else "with no config.json that tells it"
    raise InputError(
        f"{name} is a checkpoint {told}, which nobody reads here: pass family= as one of {', '.join(sorted(FAMILIES))}"
    )


@overload
def checkpoint_file(name: str, file: str, *, revision: str | None = None, optional: Literal[False] = False) -> Path: ...
@overload
def checkpoint_file(name: str, file: str, *, revision: str | None = None, optional: Literal[True]) -> Path | None: ...
def checkpoint_file(name: str, file: str, *, revision: str | None = None, optional: bool = False) -> Path | None:
    """Where a file of a checkpoint lies, fetched where a hub has to be asked; None where it has no such file."""
    if Path(name).is_dir():
        place = Path(name) / file
        if place.is_file():
            return place
        if optional:
            return None
        raise InputError(f"{name} holds no {file}: it is not a whole checkpoint, download or save it again")
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        raise InputError(f"{name!r} is neither a folder nor a hub id of the form owner/name: check the path")
    hub = require("huggingface_hub", extra="hub")
    errors = require("huggingface_hub.errors", extra="hub")
    try:
        return Path(hub.hf_hub_download(name, file, revision=revision))
    except errors.LocalEntryNotFoundError as error:
        # A snapshot that was fetched before has no file that its repository has not.
        if optional and any(isinstance(hub.try_to_load_from_cache(name, f, revision=revision), str) for f in _EACH_HAS):
            return None
        raise InputError(_absent(name, file)) from error
    except errors.EntryNotFoundError as error:
        if optional:
            return None
        raise InputError(f"{name} holds no {file}: check that the id is that of a retriever's checkpoint") from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise InputError(_absent(name, file)) from error


def _absent(name: str, file: str) -> str:
    return (
        f"{name} is not on this machine and its {file} cannot be fetched (no network, HF_HUB_OFFLINE set, no such id, "
        f"or one that asks for a login): run `hf download {name}` where there is a network and pass the folder's path"
    )


def read_json(path: Path) -> dict[str, Any]:
    """What a JSON file of a checkpoint holds."""
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): download or save the checkpoint again") from error
    return read
