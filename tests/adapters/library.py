"""A small library of passages about things in places, with questions, and a tiny retriever that reads it."""

import itertools
import random

import torch

COLOURS = ["red", "green", "blue", "black", "white", "amber", "violet", "grey"]
THINGS = ["boat", "lamp", "clock", "drum", "chair", "bell", "coat", "stove"]
PLACES = ["harbour", "attic", "station", "garden", "cellar", "market", "chapel", "bridge"]
FILLERS = [
    "the",
    "a",
    "was",
    "is",
    "of",
    "in",
    "on",
    "by",
    "near",
    "old",
    "new",
    "small",
    "large",
    "seen",
    "kept",
    "sold",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def passages(n=48, seed=0):
    """Passages by id, each with a colour, a thing and a place at its heart, some of them long."""
    draw = random.Random(seed)
    hearts = list(itertools.product(COLOURS, THINGS, PLACES))
    draw.shuffle(hearts)
    made = {}
    for number in range(n):
        words = [draw.choice(FILLERS) for _ in range(draw.randrange(3, 40))] + list(hearts[number]) * 2
        draw.shuffle(words)
        made[f"d{number:02}"] = " ".join(words)
    return made


def questions(corpus, n=16, seed=1):
    """Questions by id, and for each the passages that answer it: 2 where all of its words are there, 1 for two."""
    draw = random.Random(seed)
    asked, relevant = {}, {}
    for number, answer in enumerate(draw.sample(sorted(corpus), n)):
        words = [word for word in (*COLOURS, *THINGS, *PLACES) if word in corpus[answer].split()]
        asked[f"q{number:02}"] = "is the " + " ".join(words)
        held = {name: sum(word in text.split() for word in words) for name, text in corpus.items()}
        relevant[f"q{number:02}"] = {name: count - 1 for name, count in held.items() if count > 1}
    return asked, relevant


def saved_retriever(folder):
    """A bidirectional encoder with one random layer, a tokenizer of whole words, and a projection to 24 dimensions."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Normalize
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = [*SPECIAL, *COLOURS, *THINGS, *PLACES, *FILLERS]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    backbone = BertModel(config)
    with torch.no_grad():
        # A word stays recognisable in its context, which is what makes the retriever find anything.
        backbone.embeddings.position_embeddings.weight.mul_(0.2)
        for part in (backbone.encoder.layer[0].attention.output, backbone.encoder.layer[0].output):
            part.dense.weight.mul_(0.5)
    backbone.save_pretrained(folder / "backbone")
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder / "backbone")
    projection = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    model = MultiVectorEncoder(
        modules=[
            Transformer(str(folder / "backbone")),
            Dense(32, 24, bias=False, activation_function=torch.nn.Identity(), **projection),
            MultiVectorMask(),
            Normalize(module_input_name="token_embeddings"),
        ],
        device="cpu",
        prompts={"query": "is ", "document": "the "},
    )
    model.save_pretrained(str(folder / "retriever"))
    return str(folder / "retriever")
