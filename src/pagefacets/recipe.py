"""The recipe: every choice behind an index, as a file that people write and as the index keeps it."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from pagefacets.errors import InputError
from pagefacets.facets.compressor import Compressor
from pagefacets.facets.registry import compressor as compressor_called
from pagefacets.index.format import Manifest
from pagefacets.index.quantize import codec
from pagefacets.vectors.encoder import Encoder
from pagefacets.vectors.encoder import encoder as encoder_called
from pagefacets.vectors.formats.aside import replacing

__all__ = ["RATIO", "Recipe"]

RATIO = 0.25


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every choice behind an index: the encoder and the compressor by name and options, and how facets are stored.

    `full` keeps the full vectors as well. The defaults need neither a network nor a calibration pool.
    """

    encoder: Mapping[str, Any] = field(default_factory=lambda: {"name": "words"})
    compressor: Mapping[str, Any] = field(default_factory=lambda: {"name": "ward", "ratio": RATIO})
    dtype: str = "float16"
    full: bool = False

    def __post_init__(self) -> None:
        for name in ("encoder", "compressor"):
            table = getattr(self, name)
            if not isinstance(table.get("name"), str):
                raise InputError(f"the {name} of a recipe is a table with a name, got {table!r}")
            # What is not there and what is None are the same choice, and TOML has no word for the second.
            object.__setattr__(self, name, {key: value for key, value in table.items() if value is not None})
        codec(self.dtype, 1)

    @classmethod
    def default(cls, *, pooled: bool) -> Recipe:
        """What is chosen for those who choose nothing: MAGIC where there is a calibration pool, else clustering."""
        return cls(compressor={"name": "magic", "ratio": RATIO}) if pooled else cls()

    @classmethod
    def of(cls, manifest: Manifest) -> Recipe:
        """The choices that an index was made with."""
        encoder, compressor = dict(manifest.encoder.config), dict(manifest.compressor)
        encoder.setdefault("name", manifest.encoder.id)
        return cls(encoder=encoder, compressor=compressor, dtype=manifest.dtype, full=manifest.full)

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """A recipe from a TOML file with the tables [encoder] and [compressor]."""
        try:
            read = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(f"there is no recipe {path}: check the path") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not TOML ({error}): docs/indexes.md shows what a recipe holds") from error
        known = [item.name for item in dataclasses.fields(cls)]
        for name in read:
            if name not in known:
                raise InputError(f"{path}: a recipe has no {name!r}, it has {', '.join(known)}")
        for name in ("encoder", "compressor"):
            if not isinstance(read.get(name, {}), dict):
                raise InputError(f"{path}: the {name} of a recipe is a table with a name, got {read[name]!r}")
        for name, kind, what in (("full", bool, "true or false"), ("dtype", str, "a text")):
            if not isinstance(read.get(name, kind()), kind):
                raise InputError(f"{path}: {name} is {what}, got {read[name]!r}")
        return cls(**read)

    def save(self, path: str | Path) -> None:
        """Write the recipe as TOML."""
        with replacing(Path(path)) as partial:
            partial.write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """The recipe as TOML."""
        lines = [f"dtype = {json.dumps(self.dtype)}", f"full = {json.dumps(self.full)}"]
        for name in ("encoder", "compressor"):
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in getattr(self, name).items()]
        return "\n".join(lines) + "\n"

    def made_encoder(self, **running: object) -> Encoder:
        """The encoder, as configured here; `running`, such as a device, changes no vectors and is not recorded."""
        options: dict[str, Any] = {**self.encoder, **running}
        try:
            return encoder_called(**options)
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if unknown is None or unknown[1] not in options:
                raise
            raise InputError(f"{options['name']} has no option {unknown[1]!r}: leave it out") from error

    def made_compressor(self) -> Compressor:
        """The compressor, as configured here."""
        return compressor_called(**dict(self.compressor))
