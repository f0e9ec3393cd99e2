"""Claim: of the offline encoder's time, nearly all is the model's own.

    python -m benchmarks.words_speed

Pages of generated text, their lengths and words distributed as in documents, each word with a box. One process, one
thread. "encoder" is the whole path from a page's words to its vectors and boxes; "transformers" is BertModel with the
same weights on the same windows of the same wordpieces, ready-made, in batches of 8 sorted by length; "forward" is the
encoder's own model on them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertModel

from benchmarks.measure import interleaved, report
from pagefacets.data import Page, Words
from pagefacets.vectors.minilm import MODEL_FOLDER, bundled
from pagefacets.vectors.windows import windows
from pagefacets.vectors.words import OVERLAP, ROOM, WordsEncoder

SEED, PAGES, BATCH, ROUNDS = 0, 12, 8, 5
# Of words on a page: the median, the spread of the logarithm, and bounds.
MEDIAN, SPREAD, FEWEST, MOST = 300, 0.8, 5, 2000


@final
@dataclass(frozen=True)
class Text:
    """A page whose words are ready-made."""

    held: Words

    def image(self, longest: int | None) -> Image.Image:
        return Image.new("RGB", (85, 110), "white")

    def words(self) -> Words:
        return self.held


def written(seed: int) -> list[Page]:
    """Pages of words as frequent as their rank in the vocabulary has them, with numbers and commas among them."""
    rng = np.random.default_rng(seed)
    known = bundled().tokenizer.get_vocab()
    vocabulary = sorted((word for word in known if word.isascii() and word.isalpha()), key=lambda word: known[word])
    # Two in three words are among the hundred most frequent or so; the rest bring names, which fall into pieces.
    frequency = 1 / (np.arange(len(vocabulary)) + 3)
    frequency /= frequency.sum()
    pages = []
    for number in range(PAGES):
        count = int(np.clip(rng.lognormal(np.log(MEDIAN), SPREAD), FEWEST, MOST))
        texts = [vocabulary[i] for i in rng.choice(len(vocabulary), count, p=frequency)]
        for at in range(0, count, 9):
            texts[at] = f"{rng.integers(1, 10**6):,}"
        for at in range(4, count, 13):
            texts[at] = f"{texts[at].capitalize()}{texts[(at * 7) % count]},"
        corners = rng.uniform(0, 0.9, (count, 2))
        boxes = np.hstack([corners, corners + np.array([0.08, 0.012])]).astype(np.float32)
        pages.append(Page(f"page-{number}", "written", number, (612, 792), "", Text(Words(tuple(texts), boxes))))
    return pages


def main() -> int:
    torch.set_num_threads(1)
    model, encoder, pages = bundled(), WordsEncoder(workers=1), written(SEED)
    bare = BertModel(BertConfig.from_pretrained(MODEL_FOLDER), add_pooling_layer=False)
    bare.load_state_dict(load_file(MODEL_FOLDER / "model.safetensors"), strict=False)
    bare.train(False)
    texts = [model.pieces(page.words().texts).ids for page in pages]  # type: ignore[union-attr]
    cut = [ids[w.start : w.stop] for ids in texts for w in windows(len(ids), ROOM, OVERLAP)]
    cut.sort(key=len)
    batches = [cut[at : at + BATCH] for at in range(0, len(cut), BATCH)]
    begin, end = (model.tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    padded: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        rows = [torch.tensor([begin, *ids, end]) for ids in batch]
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        padded.append((ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()))

    @torch.inference_mode()
    def transformers() -> None:
        for ids, mask in padded:
            bare(input_ids=ids, attention_mask=mask)

    def forward() -> None:
        for batch in batches:
            model.states(batch)

    seconds = interleaved(
        {"encoder": lambda: list(encoder.encode_pages(pages)), "transformers": transformers, "forward": forward},
        rounds=ROUNDS,
    )
    tokens = sum(map(len, texts))
    print(f"{PAGES} pages of {min(map(len, texts))} to {max(map(len, texts))} wordpieces, {tokens:,} in all, ")
    print(f"read in {len(cut)} windows of {sum(map(len, cut)):,}")
    for name, took in seconds.items():
        print(f"  {name:13}{tokens / took:10,.0f} wordpieces/s")
    ratios = {
        f"encoder over {name}": (seconds[name] / seconds["encoder"], ">=", 0.8) for name in ("transformers", "forward")
    }
    return report("the offline encoder is as fast as its model", dict(ratios), seed=SEED)


if __name__ == "__main__":
    sys.exit(main())
