"""The paper's benchmarks: which data sets they have, under which names, and how large those are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

__all__ = ["SUITES", "Suite", "Task", "hub_ids", "known"]


@final
@dataclass(frozen=True)
class Task:
    """A data set by its id on the hub, mteb's name of it where mteb has it, and the paper's short name.

    `pages` and `queries` are counts, of queries those in one language; `judged` counts pairs of a query and a page.
    """

    name: str
    hub: str
    mteb: str | None
    pages: int | None = None
    queries: int | None = None
    judged: int | None = None
    languages: int = 1

    @property
    def names(self) -> frozenset[str]:
        """Every name it goes by, in lower case."""
        repository = self.hub.partition("/")[2]
        mirror = {f"mteb/{repository}"} if self.hub.endswith("_beir") else set()
        own = {self.name, self.hub, repository, *mirror} | ({self.mteb} if self.mteb else set())
        return frozenset(name.lower() for name in own)


@final
@dataclass(frozen=True)
class Suite:
    """Data sets whose macro-average is reported."""

    name: str
    title: str
    tasks: tuple[Task, ...]


def _v3(part: str, mteb: str) -> Task:
    return Task(f"v3 {part.replace('_', ' ')}", f"vidore/vidore_v3_{part}_mteb_format", f"Vidore3{mteb}Retrieval")


_V1 = (
    Task("ArxivQ", "vidore/arxivqa_test_subsampled_beir", "VidoreArxivQARetrieval", 500, 500, 500),
    Task("DocQ", "vidore/docvqa_test_subsampled_beir", "VidoreDocVQARetrieval", 500, 451, 500),
    Task("InfoQ", "vidore/infovqa_test_subsampled_beir", "VidoreInfoVQARetrieval", 500, 494, 500),
    Task("TabF", "vidore/tabfquad_test_subsampled_beir", "VidoreTabfquadRetrieval", 70, 280, 280),
    Task("TATQ", "vidore/tatdqa_test_beir", "VidoreTatdqaRetrieval", 277, 1646, 1663),
    Task("Shift", "vidore/shiftproject_test_beir", "VidoreShiftProjectRetrieval", 1000, 100, 100),
)
_V2 = (
    Task("ESG", "vidore/esg_reports_v2", "Vidore2ESGReportsRetrieval", 1538, 57, languages=4),
    Task("Economics", "vidore/economics_reports_v2", "Vidore2EconomicsReportsRetrieval", 452, 58, languages=4),
    Task("Biomedical", "vidore/biomedical_lectures_v2", "Vidore2BioMedicalLecturesRetrieval", 1016, 160, languages=4),
)
_HUMAN = Task("ESG human", "vidore/esg_reports_human_labeled_v2", "Vidore2ESGReportsHLRetrieval", 1538, 52)
_V3 = (
    _v3("finance_en", "FinanceEn"),
    _v3("finance_fr", "FinanceFr"),
    _v3("industrial", "Industrial"),
    _v3("pharmaceuticals", "Pharmaceuticals"),
    _v3("computer_science", "ComputerScience"),
    _v3("hr", "Hr"),
    _v3("energy", "Energy"),
    _v3("physics", "Physics"),
)

SUITES = {
    suite.name: suite
    for suite in (
        Suite("vidore-v1", "ViDoRe v1, the paper's six subsets", _V1),
        Suite("vidore-v2", "ViDoRe v2, four languages each", _V2),
        Suite("vidore-v2-human", "ViDoRe v2, ESG reports labelled by people", (_HUMAN,)),
        Suite("vidore-v3", "ViDoRe v3", _V3),
        Suite(
            "vidoseek", "ViDoSeek, judged by page", (Task("ViDoSeek", "VLM2Vec/ViDoSeek-page-fixed", None, 5349, 1142),)
        ),
    )
}


def known(name: str) -> Task | None:
    """The data set that goes by `name`: the paper's, mteb's, or its id on the hub, also at a revision."""
    plain = name.partition("@")[0].lower()
    return next((task for task in _tasks() if plain in task.names), None)


def hub_ids(name: str) -> tuple[str, ...]:
    """The ids on the hub that `name` stands for: a suite's data sets, or one by its task name; none for other names."""
    suite = SUITES.get(name.lower())
    if suite is not None:
        return tuple(task.hub for task in suite.tasks)
    task = known(name)
    return () if task is None else (name if "/" in name else task.hub,)


def _tasks() -> Iterator[Task]:
    for suite in SUITES.values():
        yield from suite.tasks
