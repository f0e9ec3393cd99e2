import json
import math

import pytest
import torch

from pagefacets.errors import InputError
from pagefacets.vectors.compact import AGCEncoder, MetaEmbedEncoder, cluster, saliency
from tests.checkpoints.backbones import HIDDEN, qwen2_5_vl
from tests.checkpoints.pages import pages
from tests.checkpoints.tokenizer import QWEN_SPECIAL

SMALL = {"min_pixels": 28 * 28, "max_pixels": 16 * 28 * 28}
MEMORY = tuple(f"<|mem{i}|>" for i in range(6))


@pytest.fixture(scope="module")
def agc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agc")
    return folder, qwen2_5_vl(folder, special=(*QWEN_SPECIAL, *MEMORY))


@pytest.fixture(scope="module")
def meta(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meta")
    generator = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(n, HIDDEN, generator=generator) for name, n in (("meta.page", 64), ("meta.query", 16))}
    return folder, qwen2_5_vl(folder, extra=tensors, seed=1), tensors


def clustered(folder, **options):
    return AGCEncoder(str(folder), **{"rows": 5, "tokens": 6, **SMALL, **options})


def metaembed(folder, **options):
    return MetaEmbedEncoder(
        str(folder), **{"page_tokens": "meta.page", "query_tokens": "meta.query", **SMALL, **options}
    )


def slow_saliency(attention):
    heads, learned, n = attention.shape
    total = [0.0] * n
    for u in range(learned):
        row = [sum(attention[h, u, j].item() for h in range(heads)) / heads for j in range(n)]
        mass = sum(math.exp(value) for value in row)
        total = [kept + math.exp(value) / mass / learned for kept, value in zip(total, row, strict=True)]
    return torch.tensor(total)


def slow_cluster(states, weights, k):
    order = sorted(range(len(states)), key=lambda j: (-weights[j].item(), j))[:k]
    sums = [torch.zeros(states.shape[1]) for _ in order]
    mass = [0.0 for _ in order]
    for j in range(len(states)):
        cosines = [torch.nn.functional.cosine_similarity(states[j], states[leader], dim=0).item() for leader in order]
        nearest = max(range(len(order)), key=lambda i: (cosines[i], -i))
        sums[nearest] = sums[nearest] + weights[j] * states[j]
        mass[nearest] += weights[j].item()
    return torch.stack([total / kept for total, kept in zip(sums, mass, strict=True)])


def states_by_hand(model, encoder, picture, *, suffix, attention=None, embeddings=None):
    """The hidden states of a page by transformers alone, and the weights of its last attention."""
    from transformers import AutoImageProcessor, AutoTokenizer

    config = encoder.config()
    tokenizer = AutoTokenizer.from_pretrained(config["name"])
    seen = AutoImageProcessor.from_pretrained(config["name"], backend="pil", **SMALL)(
        images=picture, return_tensors="pt"
    )
    cells = int(seen["image_grid_thw"].prod()) // 4
    text = config["page_prompt"].replace("<|image_pad|>", "<|image_pad|>" * cells)
    ids = torch.tensor([[*tokenizer(text)["input_ids"], *suffix]])
    image = (ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")).int()
    places, _ = model.model.get_rope_index(ids, mm_token_type_ids=image, image_grid_thw=seen["image_grid_thw"])
    model.set_attn_implementation("eager")
    if embeddings is not None:
        embedded = model.get_input_embeddings()(ids).detach()
        embedded[0, -len(embeddings) :] = embeddings
        hook = model.get_input_embeddings().register_forward_hook(lambda *_: embedded)
    mask = torch.zeros(1, 1, ids.shape[1], ids.shape[1]) if attention == "open" else torch.ones_like(ids)
    with torch.no_grad():
        out = model.model(input_ids=ids, attention_mask=mask, position_ids=places, **seen, output_attentions=True)
    if embeddings is not None:
        hook.remove()
    return out.last_hidden_state[0], out.attentions[-1][0]


@pytest.mark.parametrize(("n", "k"), [(40, 5), (7, 7), (3, 5), (1, 1)])
def test_clustering_is_the_loop_it_stands_for(n, k):
    generator = torch.Generator().manual_seed(n)
    attention = torch.rand(4, 3, n, generator=generator).softmax(-1)
    states = torch.randn(n, 8, generator=generator)
    weights = saliency(attention)
    torch.testing.assert_close(weights, slow_saliency(attention))
    assert weights.sum().item() == pytest.approx(1)
    found = cluster(states, weights, k)
    assert found.shape == (min(n, k), 8)
    torch.testing.assert_close(found, slow_cluster(states, weights, k), atol=1e-5, rtol=1e-5)


def test_the_heaviest_states_lead_and_ties_go_to_the_earlier():
    states = torch.eye(4)
    torch.testing.assert_close(cluster(states, torch.tensor([0.1, 0.4, 0.1, 0.4]), 4), states[[1, 3, 0, 2]])
    twins = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(cluster(twins, torch.tensor([0.4, 0.4, 0.2]), 2), torch.tensor([[0.8, 0.2]]))


def test_agcs_pages_are_clusters_of_a_model_that_sees_both_ways(agc):
    folder, model = agc
    encoder = clustered(folder)
    known = encoder._backbone.prompter.added
    for shown in pages():
        suffix = [known[name] for name in MEMORY]
        states, attention = states_by_hand(model, encoder, shown.image(None), suffix=suffix, attention="open")
        n = len(states) - 6
        expected = slow_cluster(states[:n], slow_saliency(attention[:, n:, :n]), 5)
        [found] = encoder.encode_pages([shown])
        assert found.vectors.shape == (5, HIDDEN)
        torch.testing.assert_close(found.vectors, torch.nn.functional.normalize(expected, dim=1), atol=1e-4, rtol=0)


def test_agcs_query_keeps_every_token_and_sees_both_ways(agc):
    folder, _ = agc
    encoder = clustered(folder)
    short, long = encoder.encode_queries(["total", "total revenue of the year"])
    prompt = encoder._backbone.prompter.query("total", encoder.config()["query_prompt"])
    assert short.shape == (len(prompt), HIDDEN)
    assert len(long) > len(short)
    assert not torch.allclose(short[0], long[0], atol=1e-4)
    assert torch.allclose(long.norm(dim=1), torch.ones(len(long)), atol=1e-6)


@pytest.mark.parametrize("kind", ["agc", "metaembed"])
def test_a_page_has_the_same_vectors_alone_and_among_others(agc, meta, kind):
    encoder = clustered(agc[0]) if kind == "agc" else metaembed(meta[0])
    together = list(encoder.encode_pages(pages()))
    alone = [next(encoder.encode_pages([one])).vectors for one in pages()]
    torch.testing.assert_close([one.vectors for one in together], alone, atol=1e-5, rtol=0)
    assert [one.id for one in together] == [one.id for one in pages()]
    assert encoder.dim == HIDDEN
    queries = ["a", "what was the capital expenditure in 2023?"]
    found = [encoder.encode_queries([one])[0] for one in queries]
    torch.testing.assert_close(encoder.encode_queries(queries), found, atol=1e-5, rtol=0)


def test_a_page_of_fewer_tokens_than_rows_keeps_them_all(agc):
    encoder = clustered(agc[0], rows=500)
    [found] = encoder.encode_pages(pages(((64, 64),)))
    prompt = encoder._backbone.prompter.page(pages(((64, 64),))[0].image(None), encoder.config()["page_prompt"])
    assert found.n == len(prompt)


def test_learned_tokens_that_the_tokenizer_lacks_are_those_behind_its_last(agc, tmp_path):
    from transformers import AutoTokenizer

    model = qwen2_5_vl(tmp_path)
    encoder = clustered(tmp_path)
    first = len(AutoTokenizer.from_pretrained(tmp_path))
    [shown] = pages(((100, 140),))
    suffix = list(range(first, first + 6))
    states, attention = states_by_hand(model, encoder, shown.image(None), suffix=suffix, attention="open")
    n = len(states) - 6
    expected = slow_cluster(states[:n], slow_saliency(attention[:, n:, :n]), 5)
    [found] = encoder.encode_pages([shown])
    torch.testing.assert_close(found.vectors, torch.nn.functional.normalize(expected, dim=1), atol=1e-4, rtol=0)
    with pytest.raises(InputError, match=r"has no 200 tokens <\|mem0\|> to <\|mem199\|>"):
        clustered(tmp_path, tokens=200)
    with pytest.raises(InputError, match=r"has no 7 tokens <\|mem0\|> to <\|mem6\|>"):
        clustered(agc[0], tokens=7)


def test_metaembeds_vectors_are_the_states_of_its_tokens(meta):
    folder, model, tensors = meta
    encoder = metaembed(folder)
    for shown in pages():
        suffix = [0] * 64
        states, _ = states_by_hand(model, encoder, shown.image(None), suffix=suffix, embeddings=tensors["meta.page"])
        [found] = encoder.encode_pages([shown])
        assert found.vectors.shape == (64, HIDDEN)
        torch.testing.assert_close(found.vectors, torch.nn.functional.normalize(states[-64:], dim=1), atol=1e-5, rtol=0)
    assert encoder.encode_queries(["total"])[0].shape == (16, HIDDEN)


def test_fewer_rows_are_the_first_of_more(meta):
    many, few = metaembed(meta[0]), metaembed(meta[0], page_rows=8, query_rows=4)
    [long], [short] = (list(one.encode_pages(pages(((64, 64),)))) for one in (many, few))
    torch.testing.assert_close(short.vectors, long.vectors[:8], atol=1e-5, rtol=0)
    torch.testing.assert_close(few.encode_queries(["a"])[0], many.encode_queries(["a"])[0][:4], atol=1e-5, rtol=0)


def test_meta_tokens_may_be_of_the_vocabulary(meta, tmp_path):
    folder, _, tensors = meta
    names = tuple(f"<|page{i}|>" for i in range(8))
    qwen2_5_vl(tmp_path, special=(*QWEN_SPECIAL, *names), seed=1)
    encoder = metaembed(tmp_path, page_tokens="<|page{i}|>", query_tokens="<|page{i}|>", page_rows=8, query_rows=8)
    first = encoder._backbone.prompter.added["<|page0|>"]
    encoder._backbone._model.get_input_embeddings().weight[first : first + 8] = tensors["meta.page"][:8]
    [spelled] = encoder.encode_pages(pages(((64, 64),)))
    [stored] = metaembed(folder, page_rows=8).encode_pages(pages(((64, 64),)))
    torch.testing.assert_close(spelled.vectors, stored.vectors, atol=1e-5, rtol=0)


def test_their_configurations_make_the_encoders_again(agc, meta):
    for encoder, kind in ((clustered(agc[0]), AGCEncoder), (metaembed(meta[0], bidirectional=True), MetaEmbedEncoder)):
        told = json.loads(json.dumps(encoder.config()))
        again = kind(told.pop("name"), **told)
        ((first,), (second,)) = (list(one.encode_pages(pages(((64, 64),)))) for one in (encoder, again))
        assert torch.equal(first.vectors, second.vectors)


def test_what_nobody_tells_has_to_be_told(meta):
    folder = meta[0]
    with pytest.raises(
        InputError, match="does not tell where its meta tokens are: pass page_tokens= and query_tokens="
    ):
        MetaEmbedEncoder(str(folder))
    with pytest.raises(InputError, match=r"has no such tensor as 'meta\.pages', where at least 64 tokens"):
        metaembed(folder, page_tokens="meta.pages").encode_queries(["a"])
    with pytest.raises(InputError, match=r"has one of shape \(16, 32\) as 'meta\.query', where at least 17 tokens"):
        metaembed(folder, query_rows=17).encode_queries(["a"])
    with pytest.raises(InputError, match="rows must be at least 1, got 0"):
        AGCEncoder(str(folder), rows=0)
