"""Late-interaction models of mteb with compressed documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader

from pagefacets.adapters.choice import Choice
from pagefacets.data import PageVectors, as_tensor
from pagefacets.errors import InputError
from pagefacets.extras import require
from pagefacets.facets.compressor import Compressor
from pagefacets.interaction import PackedPages, maxsim
from pagefacets.vectors.pool import CalibrationPool

if TYPE_CHECKING:
    import mteb
    from mteb.models import MultiVectorSearchEncoderWrapper
    from mteb.types import PromptType
else:
    mteb = require("mteb", extra="mteb")
    MultiVectorSearchEncoderWrapper = require("mteb.models", extra="mteb").MultiVectorSearchEncoderWrapper
    PromptType = require("mteb.types", extra="mteb").PromptType

__all__ = ["CompressedModel", "wrap"]

# Documents that are encoded before they are compressed: what is held of full vectors at any time.
_SLICE = 128

Encode: TypeAlias = Callable[..., Any]


def wrap(
    model: Any,
    method: str | Compressor = "magic",
    *,
    pool: CalibrationPool | str | os.PathLike[str] | None = None,
    device: str = "cpu",
    **options: object,
) -> CompressedModel:
    """A late-interaction model for `mteb.evaluate` whose documents are compressed and whose queries are left alone.

    `model` is what `mteb.get_model` returns, its name, or a MultiVectorEncoder of Sentence Transformers. `method` is a
    name with its options (`wrap(model, "magic", ratio=0.05, pool=pool)`) or a compressor. `device` is where documents
    are compressed and scored. The choice is part of the wrapped model's metadata, so that mteb keeps results apart.
    """
    return CompressedModel(_opened(model), Choice.of(method, pool, options), device)


@final
class CompressedModel(MultiVectorSearchEncoderWrapper):
    """What `wrap` makes: mteb's search over documents of which only facets are kept, ragged, by exact MaxSim."""

    def __init__(self, model: Any, choice: Choice, device: str = "cpu") -> None:
        self.model = model
        self.choice = choice
        self.device = device
        meta = model.mteb_model_meta
        told = {**(meta.experiment_kwargs or {}), **choice.described()}
        self.mteb_model_meta = meta.model_copy(update={"experiment_kwargs": told})
        self.corpus_chunk_size = getattr(model, "corpus_chunk_size", self.corpus_chunk_size)

    def similarity(
        self, embeddings1: Iterable[Float[Tensor, "_ p"]], embeddings2: Iterable[Float[Tensor, "_ p"]]
    ) -> Float[Tensor, "Q D"]:
        """The MaxSim score of every query and document; padding takes no part in it."""
        return maxsim(list(embeddings1), PackedPages.of(list(embeddings2)).to(self.device))

    def _encode(
        self, inputs: DataLoader[Any], *, prompt_type: PromptType | None = None, **kwargs: Any
    ) -> list[Float[Tensor, "_ p"]]:
        if prompt_type == PromptType.query:
            return _ragged(self._full(inputs, prompt_type=prompt_type, **kwargs))
        progress = kwargs.get("show_progress_bar", True)
        encode = {**kwargs, "prompt_type": prompt_type, "show_progress_bar": False}
        documents = _Documents(inputs, lambda some: self._full(some, **encode))
        compressed = self.choice.compressor.compress_many(
            documents, self.choice.pool, device=self.device, progress=progress
        )
        return [facets.vectors for facets in compressed]

    def _full(self, inputs: DataLoader[Any], **kwargs: Any) -> Any:
        """What the wrapped model says; models that search by themselves encode by a method that is not public."""
        encode: Encode = getattr(self.model, "encode", None) or self.model._encode
        return encode(inputs, **kwargs)


@final
@dataclass(frozen=True)
class _Documents(Iterable[PageVectors]):
    """Documents by number, encoded a slice at a time when they are asked for."""

    inputs: DataLoader[Any]
    encode: Encode

    def __len__(self) -> int:
        return len(cast("Sequence[object]", self.inputs.dataset))

    def __iter__(self) -> Iterator[PageVectors]:
        rows = cast("Any", self.inputs.dataset)
        batch = self.inputs.batch_size or 1
        size = batch * max(1, _SLICE // batch)
        for start in range(0, len(self), size):
            some = rows.select(range(start, min(start + size, len(self))))
            loader = DataLoader(
                some, batch_size=batch, collate_fn=self.inputs.collate_fn, num_workers=self.inputs.num_workers
            )
            names = some["id"] if "id" in some.features else range(start, start + len(some))
            for name, vectors in zip(names, _ragged(self.encode(loader)), strict=True):
                yield PageVectors(vectors, id=str(name))


def _ragged(embeddings: Any) -> list[Float[Tensor, "_ p"]]:
    """One matrix for each input, without the zero rows that stand for padding."""
    matrices = [as_tensor(rows, "embeddings") for rows in embeddings]
    for rows in matrices:
        if rows.ndim != 2:
            raise InputError(
                f"the model gives an input an array of shape {tuple(rows.shape)}, expected one vector for each token: "
                "wrap a late-interaction model"
            )
    return [rows[rows.any(dim=1)] for rows in matrices]


def _opened(model: Any) -> Any:
    """The model as mteb would run it."""
    from sentence_transformers import MultiVectorEncoder

    if isinstance(model, CompressedModel):
        raise InputError("this model is compressed already: wrap the model behind it, its .model")
    if isinstance(model, str):
        model = mteb.get_model(model)
    elif isinstance(model, mteb.models.ModelMeta):
        model = model.load_model()
    elif isinstance(model, MultiVectorEncoder):
        model = mteb.models.MultiVectorWrapper(model)
    if not (hasattr(model, "mteb_model_meta") and (hasattr(model, "encode") or hasattr(model, "_encode"))):
        raise InputError(
            f"mteb runs no model of type {type(model).__name__}: pass what mteb.get_model returns, or a "
            "MultiVectorEncoder of Sentence Transformers"
        )
    similarity = model.mteb_model_meta.similarity_fn_name
    if similarity not in (None, mteb.models.model_meta.ScoringFunction.MAX_SIM):
        raise InputError(
            f"{model.mteb_model_meta.name} compares single vectors ({similarity.value}), of which nothing can be left "
            "out: wrap a late-interaction model"
        )
    return model
