"""Tokenizers of the real kinds, trained on a few lines, for checkpoints small enough to make in a test."""

import json
import re

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LINES = [
    "Describe the image.",
    "Query: what was the capital expenditure in 2023?",
    "Question: what is the total revenue? Passage: the user asks for the total revenue of the year.",
    "user assistant system",
]
# Of Qwen2-VL and Qwen2.5-VL, in the order of their ids.
QWEN_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
GEMMA_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")


def qwen_tokenizer(special=QWEN_SPECIAL, chat_template=None):
    """A byte-level Qwen2 tokenizer; "Describe", " the", "user" and the like are one token each, as in the real one."""
    from transformers import Qwen2Tokenizer

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = Qwen2Tokenizer()._tokenizer.pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, vocab_size=600, show_progress=False)
    trained.train_from_iterator(LINES * 3, trainer)
    vocab, merges = _learned(trained)
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges, chat_template=chat_template)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.padding_side = "left"
    return tokenizer


def gemma_tokenizer(extra=("<image>",)):
    """A Gemma tokenizer with byte fallback; `extra` are added tokens, as PaliGemma's "<image>"."""
    from transformers import GemmaTokenizer

    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous")
    trained.decoder = decoders.ByteFallback()
    first = [*GEMMA_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\n"]
    words = [word for line in LINES for word in re.findall(r"▁?\w+|[^\w\s]", line.replace(" ", " ▁"))]
    trainer = trainers.BpeTrainer(special_tokens=first, vocab_size=700, show_progress=False)
    trained.train_from_iterator(words * 3, trainer)
    vocab, merges = _learned(trained)
    tokenizer = GemmaTokenizer(vocab=vocab, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": list(extra)})
    tokenizer.padding_side = "right"
    return tokenizer


def _learned(trained):
    learned = json.loads(trained.to_str())["model"]
    return learned["vocab"], [tuple(pair) for pair in learned["merges"]]
