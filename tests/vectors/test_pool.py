"""The calibration pool: what it chooses, what it keeps in its file, and whom it refuses."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pagefacets.data import PageVectors
from pagefacets.errors import FileFormatError, InputError, PoolMismatchError
from pagefacets.vectors.calibrate import checked_units, dictionary_of, visual_activation
from pagefacets.vectors.fingerprint import Moments, alignment, is_foreign, log_moment, second_moment
from pagefacets.vectors.pool import CalibrationPool, is_pool


def unit_rows(rows):
    return checked_units(torch.as_tensor(rows), "rows")


def turned(p, seed):
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((p, p)))
    return (q * np.sign(np.diag(r))).astype(np.float32)


class Space:
    """An encoder's space in small: shared topics of unequal weight, a few of them on each page."""

    def __init__(self, p=128, seed=0, topics=40):
        self.rng = np.random.default_rng(seed)
        self.topics = self.rng.standard_normal((topics, p)) * np.linspace(2.0, 0.4, topics)[:, None]

    def page(self, n=120):
        shown = self.topics[self.rng.choice(len(self.topics), 12, replace=False)]
        rows = shown[self.rng.integers(0, 12, n)] + 0.5 * self.rng.standard_normal((n, self.topics.shape[1]))
        return rows.astype(np.float32)

    def query(self, n=12):
        return self.page(n) * 3.0


@pytest.fixture
def space():
    return Space()


@pytest.fixture
def queries(space):
    return [space.query() for _ in range(40)]


@pytest.fixture
def pages(space):
    return [PageVectors(space.page(), id=f"p{i}") for i in range(12)]


def rows_of(matrix):
    return {row.tobytes() for row in np.asarray(matrix)}


@pytest.mark.parametrize("variant", ["magic", "no-visual", "no-diversity", "random"])
def test_a_pool_is_a_subset_of_the_tokens_and_repeats_itself(queries, pages, variant):
    pool = CalibrationPool.build(queries, pages, size=100, dictionary=30, variant=variant)
    offered = unit_rows(np.concatenate(queries))
    assert pool.tokens.shape == (100, 128)
    assert pool.tokens.dtype == torch.float32
    assert len(rows_of(pool.tokens)) == 100
    assert rows_of(pool.tokens) <= rows_of(offered)
    again = CalibrationPool.build(queries, pages, size=100, dictionary=30, variant=variant)
    assert torch.equal(pool.tokens, again.tokens)
    assert pool.sha256 == again.sha256


@pytest.mark.parametrize("variant", ["magic", "no-visual", "no-diversity", "random"])
def test_a_smaller_pool_is_the_beginning_of_a_larger_one(queries, pages, variant):
    small, large = (
        CalibrationPool.build(queries, pages, size=size, dictionary=30, variant=variant) for size in (50, 100)
    )
    assert torch.equal(small.tokens, large.tokens[:50])


def test_each_token_attains_the_largest_activation_times_distance(queries, pages):
    pool = CalibrationPool.build(queries, pages, size=80, dictionary=30)
    Q = np.concatenate(queries).astype(np.float64)
    Q /= np.linalg.norm(Q, axis=1, keepdims=True)
    D = np.concatenate([np.asarray(page.vectors) for page in pages]).astype(np.float64)
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    V = [int((D @ D.mean(0)).argmax())]
    nearest = np.full(len(D), -1.0)
    for _ in range(29):
        nearest = np.maximum(nearest, D @ D[V[-1]])
        V.append(int(nearest.argmin()))
    vis = np.maximum(0.0, (Q @ D[V].T).max(1))
    S = pool.tokens.double().numpy()
    position = [int((Q @ s).argmax()) for s in S]
    assert position[0] == int(vis.argmax())
    for step in range(1, 80):
        gain = vis * (1.0 - Q @ S[:step].T).min(1)
        gain[position[:step]] = -1.0
        assert gain[position[step]] >= gain.max() - 1e-6


@pytest.mark.parametrize("variant", ["magic", "no-visual", "no-diversity"])
def test_the_order_of_the_tokens_does_not_matter(queries, pages, variant):
    shuffled = np.random.default_rng(3).permutation(np.concatenate(queries))
    one = CalibrationPool.build(queries, pages, size=90, dictionary=30, variant=variant)
    other = CalibrationPool.build(shuffled, pages, size=90, dictionary=30, variant=variant)
    gap = torch.cdist(one.tokens, other.tokens).min(1).values
    assert float(gap.max()) < 1e-3


def test_without_diversity_the_most_activated_tokens_are_kept_in_order(queries, pages):
    pool = CalibrationPool.build(queries, pages, size=60, dictionary=30, variant="no-diversity")
    images = unit_rows(torch.from_numpy(np.concatenate([np.asarray(page.vectors) for page in pages])))
    entries = dictionary_of(images, 30)
    vis = visual_activation(unit_rows(np.concatenate(queries)), entries)
    expected = vis.sort(descending=True).values[:60]
    assert torch.allclose(visual_activation(pool.tokens, entries), expected, atol=1e-6)
    assert pool.sizes == (480, 40, 12, 1440, 30)


def test_ties_without_diversity_go_to_the_first_tokens():
    queries = np.eye(6, dtype=np.float32)[[0, 0, 1, 2]]
    pages = [np.eye(6, dtype=np.float32)[:3]]
    pool = CalibrationPool.build(queries, pages, size=2, variant="no-diversity")
    assert torch.equal(pool.tokens, torch.eye(6)[[0, 0]])


def test_without_the_visual_score_the_pages_are_not_consulted(space, queries, pages):
    one = CalibrationPool.build(queries, pages, size=50, variant="no-visual")
    other = CalibrationPool.build(queries, [space.page()], size=50, variant="no-visual")
    assert torch.equal(one.tokens, other.tokens)
    assert one.sizes.dictionary == 0


def test_random_tokens_depend_on_the_seed_alone(queries, pages):
    draws = [
        CalibrationPool.build(queries, pages, size=50, variant="random", seed=seed).sha256 for seed in (0, 0, 1, 2)
    ]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_tokens_blind_to_the_dictionary_go_on_by_diversity_and_warn(pages):
    """Queries and pages on orthogonal axes: every activation is 0."""
    queries = np.zeros((50, 8), np.float32)
    queries[:, :4] = np.random.default_rng(0).standard_normal((50, 4))
    page = np.zeros((30, 8), np.float32)
    page[:, 4:] = np.random.default_rng(1).standard_normal((30, 4))
    with pytest.warns(UserWarning, match="19 of the 20 calibration tokens were chosen by diversity alone"):
        pool = CalibrationPool.build(queries, [page], size=20)
    S = pool.tokens.double().numpy()
    Q = unit_rows(torch.from_numpy(queries)).double().numpy()
    for step in range(1, 20):
        distance = (1.0 - Q @ S[:step].T).min(1)
        assert (1.0 - S[step] @ S[:step].T).min() >= distance.max() - 1e-6


def test_of_too_few_tokens_all_are_kept_in_order(queries, pages):
    pool = CalibrationPool.build(queries, pages, size=5000)
    assert torch.equal(pool.tokens, unit_rows(np.concatenate(queries)))


def test_only_image_rows_enter_the_dictionary():
    """The text row would answer the second token; with the mask only the first token is visible."""
    rows = np.eye(4, dtype=np.float32)[[0, 1]]
    page = PageVectors(rows, image_mask=np.array([True, False]))
    queries = np.eye(4, dtype=np.float32)[[1, 0, 2]]
    pool = CalibrationPool.build(queries, [page], size=1)
    assert torch.equal(pool.tokens, torch.eye(4)[[0]])
    assert pool.sizes.dictionary == 1
    assert pool.sizes.patches == 2


def test_excluded_rows_are_left_out_and_may_be_padding(space, pages):
    queries = np.stack([space.query(10) for _ in range(6)])
    queries[:, 7:] = 0.0
    exclude = np.zeros((6, 10), bool)
    exclude[:, 7:] = True
    pool = CalibrationPool.build(queries, pages, exclude=exclude)
    assert torch.equal(pool.tokens, unit_rows(torch.from_numpy(queries[:, :7].reshape(-1, 128))))
    matrix = CalibrationPool.build(queries.reshape(-1, 128), pages, exclude=exclude.reshape(-1))
    assert torch.equal(matrix.tokens, pool.tokens)


def test_a_bad_row_is_named_with_its_query(queries, pages):
    for value in (0.0, np.nan, np.inf):
        spoilt = [query.copy() for query in queries]
        spoilt[17][3] = value
        exclude = [np.zeros(12, bool) for _ in queries]
        exclude[17][0] = True
        for mask in (None, exclude):
            with pytest.raises(InputError, match=r"row 3 of query 17 is zero or not finite: strip padding"):
                CalibrationPool.build(spoilt, pages, exclude=mask)
    page = pages[0].vectors.clone()
    page[5] = 0.0
    with pytest.raises(InputError, match="row 5 of page 'p0'"):
        CalibrationPool.build(queries, [PageVectors(page, id="p0")])
    with pytest.raises(InputError, match="row 1 of the pool's tokens"):
        CalibrationPool([[1.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"dictionary": -1}, "dictionary must be at least 1"),
        ({"max_pages": 0}, "max_pages must be at least 1"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"exclude": [np.zeros(12, bool)]}, "one mask for each of the 40 queries, got 1"),
        ({"exclude": [np.zeros(12, int)] * 40}, "exclude of query 0 must be 12 booleans"),
        ({"exclude": [np.zeros(5, bool)] * 40}, "exclude of query 0 must be 12 booleans"),
        ({"exclude": [np.ones(12, bool)] * 40}, "no token to choose from"),
        ({"query_vectors": []}, "no token to choose from"),
        ({"query_vectors": [np.ones((2, 64), np.float32), np.ones((2, 32), np.float32)]}, "query 1 has dimension 32"),
        ({"query_vectors": [np.ones((0, 64), np.float32)]}, "query 0 are empty"),
        ({"query_vectors": np.ones((2, 3, 4, 5), np.float32)}, "got shape"),
        ({"query_vectors": {"q": [1.0]}}, "must be a sequence of matrices, got dict"),
        ({"page_vectors": []}, "page_vectors are empty"),
        ({"page_vectors": [np.ones((2, 64), np.float32)]}, "page 0 has dimension 64 and the queries 128"),
        ({"page_vectors": iter(())}, "must be a sequence of matrices, got"),
        (
            {"page_vectors": [PageVectors(np.ones((2, 128), np.float32), image_mask=np.zeros(2, bool))]},
            "no page has an image row",
        ),
    ],
)
def test_what_cannot_be_used_is_said(queries, pages, change, sentence):
    arguments = {"query_vectors": queries, "page_vectors": pages, **change}
    with pytest.raises(InputError, match=sentence):
        CalibrationPool.build(**arguments)


class Shelf:
    """Pages read one by one, as from a file; remembers which were."""

    def __init__(self, make, count):
        self.make, self.count, self.read = make, count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.read.append(index)
        return self.make()


def test_only_the_sampled_queries_and_pages_are_read(space):
    def build(seed):
        questions, shelf = Shelf(space.query, 400), Shelf(space.page, 300)
        pool = CalibrationPool.build(questions, shelf, size=20, dictionary=5, max_queries=15, max_pages=9, seed=seed)
        assert pool.sizes == (180, 15, 9, 1080, 5)
        assert len(set(questions.read)) == len(questions.read) == 15
        assert len(set(shelf.read)) == len(shelf.read) == 9
        return questions.read, shelf.read

    assert build(0) == build(0)
    assert build(0) != build(1)


def test_half_precision_and_tensors_and_arrays_give_the_same_pool(queries, pages):
    half = [query.astype(np.float16) for query in queries]
    one = CalibrationPool.build(half, pages, size=50, dictionary=20)
    other = CalibrationPool.build([torch.from_numpy(query) for query in half], pages, size=50, dictionary=20)
    stacked = CalibrationPool.build(np.stack(half), pages, size=50, dictionary=20)
    assert one.sha256 == other.sha256 == stacked.sha256


def test_ready_made_tokens_are_normalised_and_kept_whole():
    tokens = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 2.0]])
    pool = CalibrationPool(tokens, backbone="mine/encoder")
    assert torch.equal(pool.tokens, torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.0, 1.0]]))
    assert (len(pool), pool.dim, pool.variant, pool.seed) == (3, 2, "given", None)
    assert pool.to("cpu").sha256 == pool.sha256
    assert np.array_equal(tokens[0], [3.0, 4.0])


FIELDS = ("backbone", "query_prefix", "source", "variant", "seed", "sizes", "sha256")


def test_a_saved_pool_comes_back_equal(queries, pages, tmp_path):
    built = CalibrationPool.build(
        queries, pages, size=64, dictionary=20, seed=7, backbone="org/model", query_prefix="Query: ", source="log"
    )
    bare = CalibrationPool(queries[0])
    for pool in (built, bare):
        path = tmp_path / "pool.safetensors"
        pool.save(path)
        assert [file.name for file in tmp_path.iterdir()] == ["pool.safetensors"]
        again = CalibrationPool.load(path)
        assert torch.equal(pool.tokens, again.tokens)
        for name in FIELDS:
            assert getattr(pool, name) == getattr(again, name), name
        for kind in ("queries", "pages"):
            one, other = getattr(pool.fingerprint, kind), getattr(again.fingerprint, kind)
            assert (one is None) == (other is None)
            if one is not None:
                assert (one.groups, one.agreement) == (other.groups, other.agreement)
                for part in ("mean", "directions", "energy"):
                    assert torch.equal(getattr(one, part), getattr(other, part))


def test_a_pool_of_another_backbone_is_refused_with_both_names(queries, pages, tmp_path):
    path = tmp_path / "pool.safetensors"
    CalibrationPool(queries[0], backbone="vidore/colpali-v1.3").save(path)
    assert CalibrationPool.load(path, expect="vidore/colpali-v1.3").backbone == "vidore/colpali-v1.3"
    with pytest.raises(PoolMismatchError, match=r"vidore/colpali-v1\.3 but vidore/colqwen2\.5-v0\.2 is expected"):
        CalibrationPool.load(path, expect="vidore/colqwen2.5-v0.2")
    CalibrationPool(queries[0]).save(path)
    with pytest.raises(PoolMismatchError, match="records no backbone"):
        CalibrationPool.load(path, expect="vidore/colqwen2.5-v0.2")


def body_start(data):
    return 8 + int.from_bytes(data[:8], "little")


@pytest.mark.parametrize("place", [0.02, 0.3, 0.7, 0.99])
def test_one_flipped_byte_anywhere_in_the_vectors_is_noticed(queries, pages, tmp_path, place):
    path = tmp_path / "pool.safetensors"
    CalibrationPool.build(queries, pages, size=64, dictionary=20).save(path)
    data = bytearray(path.read_bytes())
    start = body_start(data)
    data[start + int(place * (len(data) - start))] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="damaged"):
        CalibrationPool.load(path)


def test_files_that_are_not_pools_are_refused(queries, tmp_path):
    path = tmp_path / "pool.safetensors"
    assert not is_pool(path)
    with pytest.raises(InputError, match="there is no pool file"):
        CalibrationPool.load(path)
    with pytest.raises(InputError, match="there is no folder"):
        CalibrationPool(queries[0]).save(tmp_path / "nowhere" / "pool.safetensors")
    CalibrationPool(queries[0]).save(path)
    assert is_pool(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(FileFormatError, match="not a whole safetensors file"):
        CalibrationPool.load(path)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="not a whole safetensors file"):
        CalibrationPool.load(path)
    save_file({"tokens": torch.ones(2, 2)}, path)
    assert not is_pool(path)
    with pytest.raises(FileFormatError, match="not a calibration pool"):
        CalibrationPool.load(path)

    def with_header(**changes):
        start = body_start(whole)
        header = json.loads(whole[8:start])
        for name, value in changes.items():
            if value is None:
                del header["__metadata__"][name]
            else:
                header["__metadata__"][name] = value
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[start:])

    with_header(version="2")
    with pytest.raises(FileFormatError, match="version 2 and this pagefacets reads up to 1"):
        CalibrationPool.load(path)
    with_header(dim="64")
    with pytest.raises(FileFormatError, match="damaged"):
        CalibrationPool.load(path)
    with_header(variant=None)
    with pytest.raises(FileFormatError, match="lacks or garbles the pool entry 'variant'"):
        CalibrationPool.load(path)


def test_an_interrupted_save_leaves_the_old_pool(queries, tmp_path, monkeypatch):
    path = tmp_path / "pool.safetensors"
    CalibrationPool(queries[0]).save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        CalibrationPool(queries[1]).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["pool.safetensors"]


def test_a_random_rotation_has_the_stated_alignment():
    """Mean 0 and variance 2 / ((p - 1)(p + 2)), whatever the two matrices are."""
    p = 12
    A, B = (torch.from_numpy(np.diag(np.random.default_rng(seed).random(p) ** 3)) for seed in (0, 1))
    values = []
    for seed in range(3000):
        R = torch.from_numpy(turned(p, seed)).double()
        values.append(alignment(A, R @ B @ R.mT))
    expected = 2 / ((p - 1) * (p + 2))
    assert abs(np.mean(values)) < 4 * np.sqrt(expected / 3000)
    assert abs(np.var(values) / expected - 1) < 0.15


def test_the_fingerprint_puts_the_second_moment_together_again(space):
    rows = unit_rows(torch.from_numpy(np.concatenate([space.page() for _ in range(8)])))
    moments = Moments(128)
    for part in rows.chunk(8):
        moments.add(part)
    spread = moments.spread()
    exact = rows.double().mT @ rows.double() / len(rows)
    assert torch.allclose(spread.mean.double(), rows.double().mean(0), atol=1e-6)
    assert abs(float(spread.moment.trace()) - 1) < 1e-5
    assert float(torch.linalg.matrix_norm(spread.moment - exact) / torch.linalg.matrix_norm(exact)) < 0.05
    assert alignment(spread.log_moment, log_moment(second_moment(rows))) > 0.95


def test_pages_of_another_space_are_refused_and_own_pages_pass(space, queries, pages):
    pool = CalibrationPool.build(queries, pages, size=100, dictionary=30, backbone="org/model")
    for seed in range(20):
        own = unit_rows(torch.from_numpy(space.page()))
        pool.refuse_foreign(own, "own.pdf")
        pool.refuse_foreign(own * 5.0, "own.pdf, not normalised")
        with pytest.raises(PoolMismatchError, match=r"other\.pdf lie in another embedding space .* org/model"):
            pool.refuse_foreign(own @ torch.from_numpy(turned(128, seed)), "other.pdf")
    foreign = torch.from_numpy(np.concatenate([Space(seed=9).query() for _ in range(8)]))
    with pytest.raises(PoolMismatchError, match="query vectors behind the calibration pool"):
        pool.refuse_foreign(foreign, "a log", kind="query")
    pool.refuse_foreign(torch.from_numpy(np.concatenate(queries[:8])), "a log", kind="query")


def test_what_cannot_be_decided_is_let_through(space, queries, pages):
    other = torch.from_numpy(Space(seed=9).page(400))
    pool = CalibrationPool.build(queries, pages, dictionary=30)
    with pytest.raises(PoolMismatchError):
        pool.refuse_foreign(other, "other")
    pool.refuse_foreign(other[:20], "few rows")
    pool.refuse_foreign(other[:1].expand(300, -1), "a blank page")
    CalibrationPool.build(queries, pages[:2], dictionary=30).refuse_foreign(other, "a pool of two pages")
    bare = CalibrationPool(queries[0])
    bare.refuse_foreign(other, "a bare pool")
    noise = np.random.default_rng(0).standard_normal((20, 100, 128)).astype(np.float32)
    CalibrationPool.build(queries, noise, dictionary=30).refuse_foreign(other, "a space without shape")
    for each in (pool, bare):
        with pytest.raises(PoolMismatchError, match=r"dimension 64 but the calibration pool .* has dimension 128"):
            each.refuse_foreign(other[:, :64], "narrow")


def real_pages(path):
    with np.load(path) as stored:
        rows, offsets = torch.from_numpy(stored["page_vectors"]), stored["page_offsets"]
        source = stored["source"] if "source" in stored else np.full(len(offsets) - 1, "lotte")
    spaces = {}
    for start, end, name in zip(offsets[:-1], offsets[1:], source, strict=True):
        spaces.setdefault(str(name), []).append(rows[start:end])
    return spaces


@pytest.mark.realdata
def test_real_encoders_are_told_apart_without_a_false_alarm(realdata):
    """The two ColPali sources come from two checkpoints; all ColQwen2 sources from one."""
    spaces = {}
    for file in ("visual-pages/colqwen2", "visual-pages/colpali", "visual-pages/colsmol", "lotte-colbertv2/dev"):
        spaces |= real_pages(realdata / f"{file}.npz")
    spaces = {name: [unit_rows(page) for page in pages[:40]] for name, pages in spaces.items()}

    def family(name):
        return "colqwen2" if name.endswith("colqwen2") else name

    refused = passed = 0
    for name, pages in spaces.items():
        moments = Moments(128)
        for page in pages[: max(4, len(pages) // 2)]:
            moments.add(page)
        spread = moments.spread()
        for other, strangers in spaces.items():
            seen = strangers if other != name else strangers[max(4, len(strangers) // 2) :]
            for page in seen[:8]:
                part = page[torch.randperm(len(page), generator=torch.Generator().manual_seed(0))[:100]]
                if family(other) == family(name):
                    assert not is_foreign(part, spread), (name, other)
                    passed += 1
            several = torch.cat(seen[:10])
            assert is_foreign(several, spread) == (family(other) != family(name)), (name, other)
            assert is_foreign(several @ torch.from_numpy(turned(128, 5)), spread), (name, other)
            refused += 1
    assert passed > 100
    assert refused == len(spaces) ** 2
