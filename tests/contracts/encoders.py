"""Every encoder that the contract is run over: a name, and how to make it, given an empty folder to save into."""

from collections.abc import Callable
from pathlib import Path

from pagefacets.vectors.encoder import Encoder, encoder
from tests.checkpoints.backbones import making
from tests.checkpoints.retrievers import saved

ENCODERS: dict[str, Callable[[Path], Encoder]] = {
    "words": lambda folder: encoder("words"),
    "colpali": lambda folder: encoder(saved("colpali", folder), device="cpu"),
    "colpali-hf": lambda folder: encoder(saved("colpali-hf", folder), device="cpu"),
    "colqwen2": lambda folder: encoder(saved("colqwen2", folder), device="cpu"),
    "colqwen2-hf": lambda folder: encoder(saved("colqwen2-hf", folder), device="cpu"),
    "colqwen2.5": lambda folder: encoder(saved("colqwen2.5", folder), device="cpu"),
    "jina-v4": lambda folder: encoder(saved("jina-v4", folder), device="cpu"),
    "vlm2vec": making("vlm2vec"),
    "vlm2vec-v2": making("vlm2vec-v2"),
    "unime-v2": making("unime-v2"),
    "qwen3-vl-embedding": making("qwen3-vl-embedding"),
    "jina-v4-single": making("jina-v4-single"),
    "agc": making("agc"),
    "metaembed": making("metaembed"),
}
