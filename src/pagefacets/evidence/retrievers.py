"""The paper's retrievers and data sets, and what stands in for them here: other ids, local folders, or only some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, final

from pagefacets.errors import InputError
from pagefacets.evidence.suites import SUITES, Task, known
from pagefacets.pages.datasets import brings_queries
from pagefacets.pages.hub import is_hub_id
from pagefacets.vectors.encoder import ENCODERS

__all__ = ["ASKER", "MAIN", "RETRIEVERS", "DataChoice", "ModelChoice", "Retriever", "Wanted"]

# The retriever of most tables, which a model without a name stands in for.
MAIN = "ColQwen2.5"
# The model that asks questions about pages in Figure 1.
ASKER = "Qwen3-VL-8B-Instruct"
# Parts of a hub id that say which split and form of a data set it is.
_FORMS = ("_beir", "_subsampled", "_test")


@final
@dataclass(frozen=True)
class Retriever:
    """A model as the paper calls it, where it lies, and the options it is loaded with; without a place none is public.

    `own` options are those of the paper's checkpoint or of its family; a built-in encoder takes none of them.
    """

    name: str
    place: str | None
    own: Mapping[str, object] = field(default_factory=dict)
    stands_in: bool = False

    @property
    def options(self) -> dict[str, object]:
        return {} if self.place in ENCODERS else dict(self.own)


def _late(name: str, place: str) -> Retriever:
    # DocPruner and Prune-then-Merge read the importance of patches, so it is encoded with them.
    return Retriever(name, place, {"importance": True})


def _pooled(name: str, place: str | None, family: str) -> Retriever:
    return Retriever(name, place, {"family": family})


RETRIEVERS: dict[str, Retriever] = {
    one.name: one
    for one in (
        _late(MAIN, "vidore/colqwen2.5-v0.2"),
        _late("ColPali", "vidore/colpali-v1.3"),
        _late("Jina-v4", "jinaai/jina-embeddings-v4"),
        _late("ColNomic", "nomic-ai/colnomic-embed-multimodal-3b"),
        _pooled("AGC", "hltcoe/AGC_qwen2.5-vl_colpali", "agc"),
        _pooled("MetaEmbed", None, "metaembed"),
        _pooled("VLM2Vec", "TIGER-Lab/VLM2Vec-Qwen2VL-2B", "vlm2vec"),
        _pooled("VLM2Vec-V2", "VLM2Vec/VLM2Vec-V2.0", "vlm2vec-v2"),
        _pooled("UniME-V2", "TianchengGu/UniME-V2-Qwen2VL-2B", "unime-v2"),
        _pooled("VisRAG", "openbmb/VisRAG-Ret", "mteb"),
        _pooled("Jina-v4-single", "jinaai/jina-embeddings-v4", "jina-v4-single"),
        _pooled("Qwen3-VL-Embedding-2B", "Qwen/Qwen3-VL-Embedding-2B", "qwen3-vl-embedding"),
        _pooled("Qwen3-VL-Embedding-8B", "Qwen/Qwen3-VL-Embedding-8B", "qwen3-vl-embedding"),
        Retriever(ASKER, "Qwen/Qwen3-VL-8B-Instruct"),
    )
}


@final
@dataclass(frozen=True)
class ModelChoice:
    """Which retrievers run: all of the paper's, or those in `chosen`."""

    chosen: Mapping[str, Retriever] | None = None

    @classmethod
    def of(cls, given: Sequence[str] = (), options: Mapping[str, Mapping[str, object]] | None = None) -> ModelChoice:
        """NAME, or NAME=PLACE for a checkpoint in its stead; a PLACE alone stands in for ColQwen2.5.

        `options` are those of the encoders by the name of their model, and for all of them under "".
        """
        chosen: dict[str, Retriever] = {}
        for text in _split(given):
            name, _, place = text.partition("=")
            found = _named(RETRIEVERS, name)
            if found is None and place:
                raise InputError(f"the paper has no model {name!r}: name one of {', '.join(RETRIEVERS)}")
            one = RETRIEVERS[MAIN] if found is None else found
            other = place or (name if found is None else "")
            chosen[one.name] = replace(one, place=other, stands_in=True) if other else one
        extra = options or {}
        for name in extra:
            if name and _named(RETRIEVERS, name) is None:
                raise InputError(f"the paper has no model {name!r}: name one of {', '.join(RETRIEVERS)}")
        if not extra:
            return cls(chosen or None)
        listed = chosen or RETRIEVERS
        settled = {}
        for name, one in listed.items():
            # What is said to all encoders is not said to the model that asks questions.
            heard = {name.lower()} if name == ASKER else {"", name.lower()}
            mine = {key: value for of, group in extra.items() if of.lower() in heard for key, value in group.items()}
            settled[name] = replace(one, own={**one.own, **mine}, stands_in=one.stands_in or bool(mine))
        return cls(settled if chosen else {**RETRIEVERS, **settled})

    def find(self, name: str) -> Retriever:
        """The retriever that the paper calls `name`, or InputError where it was left out or none is public."""
        if self.chosen is not None and name not in self.chosen:
            raise InputError("it is not among the models that were asked for")
        one = RETRIEVERS[name] if self.chosen is None else self.chosen[name]
        if one.place is None:
            raise InputError(f"no checkpoint of {name} is public: pass one of your own as {name}=FOLDER")
        return one


class Wanted(NamedTuple):
    """A data set of a suite: the column it stands in, where it is, and whether that column is one of the paper's."""

    column: str
    place: str | None
    printed: bool


@final
@dataclass(frozen=True)
class DataChoice:
    """Which data sets are measured on: the paper's, some of them, or `own` ones in the stead of a whole suite."""

    named: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Sequence[str] = ()) -> DataChoice:
        """The names of suites or data sets, NAME=PLACE, a folder of folders named so, or a data set itself."""
        named: dict[str, str] = {}
        own: dict[str, str] = {}
        for text in _split(given):
            name, _, place = text.partition("=")
            task = known(name)
            if place:
                if task is None:
                    raise InputError(f"the paper has no data set {name!r}: name one of {', '.join(_names())}")
                named[task.name] = place
            elif name.lower() in SUITES:
                named |= {one.name: one.hub for one in SUITES[name.lower()].tasks}
            elif task is not None and not Path(name).is_dir():
                named[task.name] = name if "/" in name else task.hub
            elif Path(name).is_dir():
                # Parquet files below a folder of data sets would make it look like one.
                inside = _inside(Path(name))
                named |= inside
                if not inside:
                    own[Path(name).resolve().name] = _with_queries(name)
            elif is_hub_id(name):
                own[name] = name
            else:
                raise InputError(
                    f"{name} is neither a folder nor a data set of the paper: name one of {', '.join(_names())}, or "
                    f"give NAME=FOLDER"
                )
        return cls(named, own)

    def of_suite(self, suite: str) -> list[Wanted]:
        """The data sets of a suite; those without a place were left out."""
        tasks = SUITES[suite].tasks
        if not self.named and not self.own:
            return [Wanted(task.name, task.hub, printed=True) for task in tasks]
        if self.own and not any(task.name in self.named for task in tasks):
            return [Wanted(name, place, printed=False) for name, place in self.own.items()]
        return [Wanted(task.name, self.named.get(task.name), printed=True) for task in tasks]


def _split(given: Iterable[str]) -> list[str]:
    return [part.strip() for text in given for part in text.split(",") if part.strip()]


def _named(table: Mapping[str, Retriever], name: str) -> Retriever | None:
    return next((one for key, one in table.items() if key.lower() == name.lower()), None)


def _inside(folder: Path) -> dict[str, str]:
    """The data sets in a folder of folders, those called as the paper, mteb or the hub calls them."""
    paths = sorted(path for path in folder.iterdir() if path.is_dir())
    return {task.name: str(path) for path in paths if (task := _called(path.name)) is not None}


def _with_queries(folder: str) -> str:
    if not brings_queries(folder):
        raise InputError(
            f"{folder} is neither a data set nor a folder of data sets called as the paper's: call the folders inside "
            f"{', '.join(_names()[:3])} and so on"
        )
    return folder


def _called(name: str) -> Task | None:
    """The data set that a folder's name means: a name of it, or the part of its hub id behind the owner."""
    task = known(name.replace("_", " ")) or known(name)
    if task is not None:
        return task
    plain = _bare(name)
    return next((one for one in _tasks() if _bare(one.hub.partition("/")[2]) == plain), None)


def _bare(name: str) -> str:
    plain = name.lower()
    for form in _FORMS:
        plain = plain.removesuffix(form)
    return plain


def _tasks() -> list[Task]:
    return [task for suite in SUITES.values() for task in suite.tasks]


def _names() -> list[str]:
    return [task.name for task in _tasks()]
