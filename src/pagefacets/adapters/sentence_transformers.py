"""Token pooling of Sentence Transformers' MultiVectorEncoder by any method that runs on bare vectors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.adapters.choice import Choice
from pagefacets.errors import FileFormatError, InputError
from pagefacets.extras import require
from pagefacets.facets.compressor import Compressor
from pagefacets.facets.registry import METHODS, compressor
from pagefacets.vectors.pool import CalibrationPool

if TYPE_CHECKING:
    from sentence_transformers.multi_vector_encoder.modules import BaseTokenPooling
else:
    BaseTokenPooling = require(
        "sentence_transformers.multi_vector_encoder.modules", extra="sentence-transformers"
    ).BaseTokenPooling

__all__ = ["TokenPooling"]

_POOL = "pool.safetensors"


@final
class TokenPooling(BaseTokenPooling):
    """What is kept of each document's vectors, by a pagefacets compressor.

    `method` is a name with its options (`TokenPooling("magic", ratio=0.05, pool=pool)`) or a compressor. `tasks` says
    what is compressed: documents, unless told otherwise. It goes into a model as its last module, which is saved and
    loaded with it (with trust_remote_code=True, as Sentence Transformers asks of every class that is not its own), or
    into one call as `encode_document(..., token_pooling=...)`. It keeps no gradient: train the model without it.
    """

    config_keys = ["compressor", "pool", "tasks"]  # noqa: RUF012

    def __init__(
        self,
        method: str | Compressor = "magic",
        *,
        pool: CalibrationPool | str | os.PathLike[str] | None = None,
        tasks: str | list[str] | None = None,
        **options: object,
    ) -> None:
        super().__init__(tasks=tasks)
        self.choice = Choice.of(method, pool, options)

    def pool_one(self, embedding: Float[Tensor, "N p"], **kwargs: Any) -> Float[Tensor, "K p"]:
        """The vectors that are kept of one document; none of a document that has none."""
        if embedding.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "these vectors want a gradient, which compression does not pass on: train without this module, "
                "or encode under torch.no_grad()"
            )
        if embedding.shape[0] == 0:
            return embedding
        held = self.choice.pool
        if held is not None and held.tokens.device != embedding.device:
            self.choice = Choice(self.choice.compressor, held.to(embedding.device))
        return self.choice.compress(embedding)

    def get_config_dict(self) -> dict[str, Any]:
        """What is written to the module's config.json, beside which the pool lies as a file of its own."""
        pool = None if self.choice.pool is None else _POOL
        return {"compressor": self.choice.compressor.config(), "pool": pool, "tasks": self.tasks}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        name = self.choice.compressor.name
        if name not in METHODS:
            raise InputError(
                f"{name} is a method of your own, which a loaded model would not find: "
                "pass it to encode_document(token_pooling=...) and save the model without it"
            )
        super().save(output_path, *args, safe_serialization=safe_serialization, **kwargs)
        if self.choice.pool is not None:
            self.choice.pool.save(Path(output_path) / _POOL)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ARG003
    ) -> TokenPooling:
        place: dict[str, Any] = {
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        config = {**(init_defaults or {}), **cls.load_config(model_name_or_path, **place)}
        try:
            method, named, tasks = config["compressor"], config["pool"], config["tasks"]
        except KeyError as error:
            raise FileFormatError(
                f"config.json of {subfolder or 'the token pooling'} in {model_name_or_path} lacks {error}: "
                "save the model again"
            ) from error
        file = None
        if named is not None:
            file = cls.load_file_path(model_name_or_path, filename=named, **place)
            if file is None:
                raise InputError(
                    f"{model_name_or_path} has no {subfolder}/{named}, the calibration pool of its token pooling: "
                    "copy the model whole, or save it again"
                )
        return cls(compressor(**method), pool=file, tasks=tasks)
