"""Datasets on the Hugging Face hub: their Parquet files, fetched once and kept in the hub's own cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from pagefacets.errors import InputError
from pagefacets.extras import require

__all__ = ["fetch", "is_hub_id"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def is_hub_id(source: str) -> bool:
    """Whether `source` reads as owner/name or owner/name@revision, and there is no folder of that owner here."""
    return _HUB_ID.fullmatch(source) is not None and not Path(source.partition("/")[0]).exists()


def fetch(source: str, choose: Callable[[Sequence[str]], Sequence[str]] | None = None) -> Path:
    """The folder that holds the Parquet files of the dataset owner/name or owner/name@revision.

    `choose` picks those to fetch among the names of all; without a network, what was fetched before is taken.
    """
    hub = require("huggingface_hub", extra="hub")
    errors = require("huggingface_hub.errors", extra="hub")
    name, _, revision = source.partition("@")
    # Errors of the network, by the names that the HTTP library of this version gives them.
    network = (OSError, *errors.HfHubHTTPError.__mro__[:2])
    wanted = ["*.parquet", "**/*.parquet"]
    unlisted: Exception | None = None
    try:
        if choose is not None:
            try:
                about = hub.HfApi().dataset_info(name, revision=revision or None)
                wanted = list(choose([one.rfilename for one in about.siblings if one.rfilename.endswith(".parquet")]))
            except network as error:
                if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
                    raise
                # Whatever part of it is here is asked for, so nothing is.
                wanted, unlisted = [], error
        folder = hub.snapshot_download(
            name,
            repo_type="dataset",
            revision=revision or None,
            allow_patterns=wanted,
            local_files_only=unlisted is not None,
        )
    except (ValueError, *network) as error:
        raise InputError(
            f"{source} is no folder here, and the hub does not give out a dataset of that name now "
            f"({_first_line(unlisted or error)}): check the name, or download it where there is a network"
        ) from error
    return Path(folder)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".: ")
