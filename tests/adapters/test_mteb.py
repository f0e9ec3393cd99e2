"""Compressed models in mteb.evaluate, on a retrieval task that lies in memory."""

import itertools

import numpy as np
import pytest
import pytrec_eval
import torch

import pagefacets as pf
from pagefacets.evidence.labelled import Labelled
from tests.test_docs import programs

pytestmark = pytest.mark.filterwarnings("ignore")


def wrap(*args, **options):
    from pagefacets.adapters.mteb import wrap

    return wrap(*args, **options)


@pytest.fixture(scope="module")
def task(library):
    """The library as mteb has its tasks; nothing of it is fetched."""
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    corpus, asked, relevant = library

    class LibraryRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="LibraryRetrieval",
            description="Passages about things in places.",
            dataset={"path": "none", "revision": "1"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_5",
        )

        def load_data(self, **kwargs):
            held = {
                "corpus": Dataset.from_list([{"id": name, "text": text} for name, text in corpus.items()]),
                "queries": Dataset.from_list([{"id": name, "text": text} for name, text in asked.items()]),
                "relevant_docs": {name: dict(answers) for name, answers in relevant.items()},
                "top_ranked": self.candidates,
            }
            self.dataset = {"default": {"test": held}}
            self.data_loaded = True

        candidates = None

    return LibraryRetrieval


def evaluated(model, task, cache=None, **encode):
    """mteb's own nDCG@5."""
    import mteb

    (result,) = mteb.evaluate(
        model, task, cache=cache, show_progress_bar=False, encode_kwargs={"show_progress_bar": False, **encode}
    ).task_results
    return result.scores["test"][0]["ndcg_at_5"]


def by_ourselves(library, queries, documents):
    """The same number from our exact scores, by trec_eval."""
    corpus, asked, relevant = library
    scores = pf.maxsim(queries, documents).tolist()
    run = {question: dict(zip(corpus, row, strict=True)) for question, row in zip(asked, scores, strict=True)}
    measured = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.5"}).evaluate(run)
    return float(np.mean([one["ndcg_cut_5"] for one in measured.values()]))


def kept(method, documents, pool):
    return [method.compress(rows, pool).vectors for rows in documents]


def test_identity_is_the_model_itself(retriever, task, library, encoded):
    plain = evaluated(retriever, task())
    assert 0.3 < plain < 0.9
    assert evaluated(wrap(retriever, "identity"), task()) == pytest.approx(plain, abs=1e-4)
    assert by_ourselves(library, encoded[1], encoded[0]) == pytest.approx(plain, abs=1e-4)


@pytest.mark.parametrize("options", [{"ratio": 0.25}, {"ratio": 0.05}, {"budget": 3, "source": "uniform"}])
def test_its_score_is_that_of_our_own_exact_search(retriever, task, library, encoded, pool, options):
    documents, queries = encoded
    expected = by_ourselves(library, queries, kept(pf.Magic(**options), documents, pool))
    found = evaluated(wrap(retriever, "magic", pool=pool, **options), task(), batch_size=5)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found != pytest.approx(by_ourselves(library, queries, documents), abs=1e-4)


def test_candidates_are_ranked_again_by_the_same_scores(retriever, task, library, encoded):
    """A reranking task hands every question its own candidates: here all passages, in another order."""
    everything = list(library[0])
    reranking = task()
    reranking.candidates = dict.fromkeys(library[1], everything[::-1])
    expected = by_ourselves(library, encoded[1], kept(pf.compressor("ward", ratio=0.2), encoded[0], None))
    assert evaluated(wrap(retriever, "ward", ratio=0.2), reranking) == pytest.approx(expected, abs=1e-4)


class Padded:
    """The retriever in the habits of mteb's wrappers of colpali-engine: padded inside each batch, and all batches once
    more into one block of zeros."""

    def __init__(self, retriever):
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        self.retriever = retriever
        self.seen = []
        self.mteb_model_meta = ModelMeta.create_empty(
            {"name": "tests/padded", "revision": "1", "similarity_fn_name": ScoringFunction.MAX_SIM}
        )

    def encode(self, inputs, *, prompt_type=None, **kwargs):
        encode = self.retriever.encode_query if prompt_type.value == "query" else self.retriever.encode_document
        self.seen.append((prompt_type.value, len(inputs.dataset)))
        rows = []
        for batch in inputs:
            ragged = encode(batch["text"], show_progress_bar=False)
            rows.extend(torch.nn.utils.rnn.pad_sequence(ragged, batch_first=True, padding_side="left"))
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def similarity(self, queries, documents):
        from mteb.similarity_functions import max_sim

        return max_sim(queries, documents)

    similarity_pairwise = similarity


def test_padding_is_left_out_of_compression_and_scores(retriever, task, library, encoded, pool):
    documents, queries = encoded
    expected = by_ourselves(library, queries, kept(pf.Magic(ratio=0.2), documents, pool))
    assert evaluated(wrap(Padded(retriever), ratio=0.2, pool=pool), task()) == pytest.approx(expected, abs=1e-4)
    model = wrap(Padded(retriever), "identity")
    below = [-torch.eye(4)[:1], -torch.eye(4)[:3]]
    assert model.similarity([torch.eye(4)[:1]], below).tolist() == [[-1.0, 0.0]]
    ragged = torch.nn.utils.rnn.pad_sequence(below, batch_first=True)
    assert model.model.similarity(torch.eye(4)[None, :1], ragged).tolist() == [[0.0, 0.0]]


def test_only_a_slice_of_full_documents_is_held(retriever, task, library, monkeypatch):
    import pagefacets.adapters.mteb as adapter

    monkeypatch.setattr(adapter, "_SLICE", 16)
    model = wrap(Padded(retriever), "ward", ratio=0.2)
    evaluated(model, task(), batch_size=6)
    assert model.model.seen == [("query", len(library[1])), *[("document", 12)] * 4]


def test_the_choice_is_part_of_the_models_metadata(retriever, task, pool, tmp_path):
    """Results of different choices lie apart in mteb's cache, and those of one are found again."""
    from mteb import ResultCache

    cache = ResultCache(tmp_path)
    magic = wrap(retriever, ratio=0.25, tau=0.1, pool=pool)
    told = {"compressor": "magic", "ratio": 0.25, "tau": 0.1, "pool": pool.sha256[:12]}
    assert magic.mteb_model_meta.experiment_kwargs == told
    plain = evaluated(retriever, task(), cache)
    scores = {
        ratio: evaluated(wrap(retriever, "ward", ratio=ratio), task(), cache, batch_size=32) for ratio in (0.5, 0.03)
    }
    assert len({plain, *scores.values()}) == 3
    assert len(list(tmp_path.rglob("LibraryRetrieval.json"))) == 3
    again = wrap(Padded(retriever), "ward", ratio=0.03)
    again.mteb_model_meta = wrap(retriever, "ward", ratio=0.03).mteb_model_meta
    assert evaluated(again, task(), cache) == scores[0.03]
    assert again.model.seen == []


def test_what_cannot_work_is_refused_before_anything_is_encoded(retriever, pool):
    import mteb
    from mteb.models import ModelMeta
    from mteb.models.model_meta import ScoringFunction

    with pytest.raises(pf.InputError, match="magic needs a calibration pool"):
        wrap(retriever, "magic", ratio=0.05)
    with pytest.raises(pf.InputError, match="docpruner reads the attention that each patch receives"):
        wrap(retriever, "docpruner", ratio=0.05)
    with pytest.raises(pf.InputError, match="mteb runs no model of type dict"):
        wrap({}, "identity")
    with pytest.raises(pf.InputError, match="compressed already"):
        wrap(wrap(retriever, "identity"), "identity")
    single = Padded(retriever)
    single.mteb_model_meta = ModelMeta.create_empty(
        {"name": "tests/single", "revision": "1", "similarity_fn_name": ScoringFunction.COSINE}
    )
    with pytest.raises(pf.InputError, match=r"tests/single compares single vectors \(cosine\)"):
        wrap(single, "identity")
    assert mteb.get_model_meta("mteb/baseline-random-encoder").similarity_fn_name is ScoringFunction.COSINE
    with pytest.raises(pf.InputError, match="baseline-random-encoder compares single vectors"):
        wrap("mteb/baseline-random-encoder", "identity")


def test_one_vector_for_a_document_is_refused(retriever, task):
    model = Padded(retriever)
    model.encode = lambda inputs, **kwargs: torch.ones(len(inputs.dataset), 8)
    with pytest.raises(pf.InputError, match=r"an array of shape \(8,\), expected one vector for each token"):
        evaluated(wrap(model, "identity"), task())


COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}


class Coloured:
    """Reads a picture as the colours of its pixels and a question as the colours that it names."""

    def __init__(self):
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": "tests/coloured",
                "revision": "1",
                "similarity_fn_name": ScoringFunction.MAX_SIM,
                "modalities": ["image", "text"],
            }
        )

    def encode(self, inputs, **kwargs):
        if "image" in inputs.dataset.features:
            read = [np.asarray(image.convert("RGB")).reshape(-1, 3) for batch in inputs for image in batch["image"]]
        else:
            read = [[COLOURS[word] for word in text.split()] for batch in inputs for text in batch["text"]]
        return [torch.nn.functional.normalize(torch.tensor(np.array(rows)).float(), dim=1) for rows in read]


def test_pages_that_are_images_are_compressed_and_found():
    from datasets import Dataset, Features, Image, Value
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata
    from PIL import Image as Picture

    pairs = list(itertools.combinations(COLOURS, 2))

    def picture(pair, width):
        drawn = Picture.new("RGB", (width, 4), COLOURS[pair[0]])
        drawn.paste(COLOURS[pair[1]], (0, 0, width, 1))
        return drawn

    class PictureRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="PictureRetrieval",
            description="Pictures of two colours.",
            dataset={"path": "none", "revision": "1"},
            type="DocumentUnderstanding",
            category="t2i",
            modalities=["text", "image"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_5",
        )

        def load_data(self, **kwargs):
            pages = {"-".join(pair): picture(pair, 5 + i) for i, pair in enumerate(pairs)}
            columns = Features({"id": Value("string"), "image": Image()})
            self.dataset = {
                "default": {
                    "test": {
                        "corpus": Dataset.from_dict({"id": list(pages), "image": list(pages.values())}, columns),
                        "queries": Dataset.from_list([{"id": name, "text": name.replace("-", " ")} for name in pages]),
                        "relevant_docs": {name: {name: 1} for name in pages},
                        "top_ranked": None,
                    }
                }
            }
            self.data_loaded = True

    assert evaluated(wrap(Coloured(), "kmeans", budget=2), PictureRetrieval(), batch_size=4) == pytest.approx(1)
    assert evaluated(wrap(Coloured(), "random", budget=1), PictureRetrieval()) < 1


@pytest.mark.parametrize(("method", "options"), [("magic", {"ratio": 0.25}), ("ward", {"ratio": 0.1})])
def test_benchmark_gives_the_same_number(retriever, task, library, encoded, pool, method, options):
    corpus, asked, relevant = library
    data = Labelled.of("library", *encoded, relevant, page_ids=list(corpus), query_ids=list(asked))
    measured = pf.benchmark(data, [method], [options["ratio"]], pool=pool, measures="ndcg@5", workers=1)
    found = evaluated(wrap(retriever, method, pool=pool, **options), task())
    assert measured.row(method, options["ratio"]).measures["ndcg@5"].mean == pytest.approx(found, abs=1e-4)


def test_the_program_in_the_docs_runs(retriever, task, pool, tmp_path, monkeypatch):
    """As written, but for the model and the task, which would be fetched."""
    program = programs("adapters.md")["measured.py"]
    for fetched, here in (
        ('"vidore/colqwen2.5-v0.2"', "retriever"),
        ('mteb.get_task("VidoreDocVQARetrieval")', "task"),
    ):
        assert fetched in program
        program = program.replace(fetched, here)
    monkeypatch.chdir(tmp_path)
    pool.save("pool.safetensors")
    names = {"retriever": retriever, "task": task()}
    exec(program, names)
    (result,) = names["results"].task_results
    again = evaluated(wrap(retriever, "magic", ratio=0.05, pool=pool), task())
    assert result.scores["test"][0]["ndcg_at_5"] == pytest.approx(again, abs=1e-6)
    assert len(list((tmp_path / "results").rglob("LibraryRetrieval.json"))) == 1
