"""Retrievers that mteb has a wrapper for, read through it: VisRAG-Ret, whose model is code of its own checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from pagefacets.data import Page, PageVectors, unit_rows
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.extras import require
from pagefacets.vectors.backbones.batches import Batches
from pagefacets.vectors.encoder import Encoder, asked

__all__ = ["MtebEncoder"]

# The longer side to which a page is rendered, in pixels: more than any of these models looks at.
_LONGEST = 4096
# An image counts as a token for each square of so many pixels, which is near enough to bound a batch.
_PIXELS = 28 * 28


class _Inputs(NamedTuple):
    """One column of inputs, as mteb's wrappers ask after it."""

    features: dict[str, type]
    column: list[Any]

    def batch(self, rows: Sequence[int]) -> dict[str, list[Any]]:
        return {name: [self.column[row] for row in rows] for name in self.features}


@final
class MtebEncoder(Encoder):
    """A model of mteb's registry, whose wrapper prompts and pools as it does in mteb's own benchmarks.

    `task` is the mteb task whose prompts are taken, `options` go to the wrapper. Of models with one vector for a page.
    """

    def __init__(
        self,
        name: str,
        *,
        family: str = "mteb",
        revision: str | None = None,
        task: str = "VidoreDocVQARetrieval",
        options: Mapping[str, object] | None = None,
        device: str | None = None,
        batch_size: int | Literal["auto"] = "auto",
    ) -> None:
        self._mteb = require("mteb", extra="mteb")
        self._name = name
        self._family = family
        self._task = task
        self._options = dict(options or {})
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self._meta = self._mteb.get_model_meta(name, revision=revision)
            self._prompts = self._mteb.get_task(task).metadata
        except (KeyError, ValueError) as error:
            raise InputError(f"mteb knows no model {name} or no task {task} ({error}): check both names") from error
        self._revision: str | None = revision or self._meta.revision
        place = torch.device(self._device)
        self._pages: Batches[tuple[str, Image]] = Batches(
            batch_size, tokens=_tokens, device=place, remedy="encode on a larger device"
        )
        self._queries: Batches[str] = Batches(batch_size, tokens=len, device=place, remedy="shorten the query")

    @property
    def id(self) -> str:
        return self._name if self._revision is None else f"{self._name}@{self._revision}"

    @cached_property
    def dim(self) -> int:
        told = self._meta.embed_dim
        return int(told) if isinstance(told, int) else int(self.encode_queries(["a"])[0].shape[1])

    @property
    def query_prefix(self) -> str:
        """Empty: what mteb puts before a query is the wrapper's own business."""
        return ""

    def config(self) -> Mapping[str, object]:
        return {
            "name": self._name,
            "family": self._family,
            "revision": self._revision,
            "task": self._task,
            "options": self._options,
        }

    def encode_pages(self, pages: Iterable[Page], *, skipped: Skipped | None = None) -> Iterator[PageVectors]:
        def images() -> Iterator[tuple[str, Image]]:
            for page in pages:
                try:
                    image = page.image(_LONGEST).convert("RGB")
                except PageError as error:
                    if skipped is None:
                        raise
                    skipped(error)
                    continue
                yield page.id, image

        def vectors(batch: Sequence[tuple[str, Image]]) -> list[PageVectors]:
            rows = self._encoded("image", [image for _, image in batch], "document")
            return [PageVectors(found, id=page) for (page, _), found in zip(batch, rows, strict=True)]

        return self._pages.run(images(), vectors)

    def encode_queries(self, queries: Sequence[str]) -> list[Float[Tensor, "M p"]]:
        return list(self._queries.run(asked(queries), lambda batch: self._encoded("text", list(batch), "query")))

    @cached_property
    def _model(self) -> Any:
        try:
            return self._mteb.get_model(self._name, revision=self._revision, device=self._device, **self._options)
        except (ImportError, OSError) as error:
            raise InputError(f"mteb cannot load {self._name} here: {str(error).splitlines()[0]}") from error

    @torch.no_grad()
    def _encoded(self, feature: str, column: list[Any], side: str) -> list[Tensor]:
        inputs = _Inputs({feature: object}, column)
        loader = torch.utils.data.DataLoader(
            _Rows(inputs), batch_size=len(column), shuffle=False, collate_fn=inputs.batch
        )
        answer = self._model.encode(
            loader,
            task_metadata=self._prompts,
            hf_split="test",
            hf_subset="default",
            prompt_type=self._mteb.types.PromptType(side),
            show_progress_bar=False,
        )
        rows = torch.as_tensor(answer).float().cpu()
        if rows.ndim != 2 or len(rows) != len(column):
            raise InputError(
                f"mteb's wrapper of {self._name} answers {len(column)} inputs with an array of shape "
                f"{tuple(rows.shape)}, expected one vector for each"
            )
        units, directed = unit_rows(rows)
        if not directed.all():
            raise InputError(f"mteb's wrapper of {self._name} answers with a vector that is zero, NaN or infinite")
        return list(units.unsqueeze(1))


class _Rows(torch.utils.data.Dataset[int]):
    """Row numbers, with the features that the wrappers look for on a data set."""

    def __init__(self, inputs: _Inputs) -> None:
        self.features = inputs.features
        self._n = len(inputs.column)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, row: int) -> int:
        return row


def _tokens(page: tuple[str, Image]) -> int:
    width, height = page[1].size
    return width * height // _PIXELS
