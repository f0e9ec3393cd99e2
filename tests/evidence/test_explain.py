"""Why a page answers a query: pages whose evidence is known, the laws of weights and scores, hostile text, an index."""

import base64
import dataclasses
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service

import pagefacets as pf
from pagefacets.errors import InputError
from pagefacets.evidence.explain import explain, with_plan
from pagefacets.evidence.heatmap import Sheet
from pagefacets.evidence.places import Layout
from pagefacets.interaction import maxsim_reference
from tests.pages.pdfs import Sheet as PdfSheet
from tests.pages.pdfs import pdf, show

AXES = torch.eye(4)
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!--'\"&\u202e\x00\ud800"


def box(i):
    """A place for word i, apart from all others."""
    return [0.1 * i, 0.1 * i, 0.1 * i + 0.05, 0.1 * i + 0.05]


def four_words(**options):
    """Words 0 and 1 share facet 0, word 2 is facet 1, word 3 was dropped; nobody knows where word 1 lies."""
    boxes = [box(0), [float("nan")] * 4, box(2), box(3)]
    facets = pf.Facets(
        vectors=AXES[[0, 2]],
        assignment=torch.tensor([0, 0, 1, -1]),
        demand=torch.tensor([0.3, 0.1, 0.4, 0.2]),
        id="report.pdf#6",
    )
    return explain(AXES[[0, 2]] * 0.5, facets, layout=Layout(boxes=boxes), **options)


def drawn(data, p=8):
    """A page of some kind with its facets, and a query."""
    n, m = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    vectors = rng.standard_normal((n, p), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    boxes = np.sort(rng.random((n, 2, 2)), axis=1).reshape(n, 4)
    boxes[rng.random(n) < data.draw(st.sampled_from([0, 0.5, 1]))] = np.nan
    page = pf.PageVectors(vectors, boxes=boxes, id="page")
    method = data.draw(st.sampled_from([pf.compressor("ward", ratio=0.3), pf.Magic(ratio=0.3, source="uniform")]))
    facets = dataclasses.replace(method.compress(page), offset=data.draw(st.sampled_from([None, 0.25])))
    return page, facets, rng.standard_normal((m, p), dtype=np.float32)


def test_each_token_shows_the_members_of_its_facet_by_their_demand():
    found = four_words(tokens=["first", "third"])
    assert [(one.text, one.facet, one.members) for one in found.tokens] == [("first", 0, 2), ("third", 1, 1)]
    assert [one.score for one in found.tokens] == [0.5, 0.5]
    (place,) = found.boxes(0)
    assert place[:4] == pytest.approx(box(0))
    assert place.weight == pytest.approx(0.75)
    assert found.boxes(1) == [pytest.approx((*box(2), 1.0))]
    assert [round(place.weight, 5) for place in found.boxes()] == [1.0, 0.75]
    assert found.full_score is None


def test_the_full_view_is_the_vector_that_each_token_picks():
    full = pf.PageVectors(torch.cat([AXES[[0]], AXES[[1]], AXES[[2]], AXES[[3]]]))
    found = four_words(full=full, tokens=["first", "third"])
    assert [one.full for one in found.tokens] == [(0, 0.5), (2, 0.5)]
    assert found.full_score == 1.0
    assert found.boxes(1, "full") == [pytest.approx((*box(2), 1.0))]
    assert len(found.boxes(view="full")) == 2


def test_patches_are_cells_of_the_grid():
    mask = torch.tensor([False, True, True, True, True])
    page = pf.PageVectors(torch.eye(5), grid=(2, 2), image_mask=mask)
    facets = pf.Facets(vectors=torch.eye(5)[[0, 4]], assignment=torch.tensor([0, 0, 0, 1, 1]))
    found = explain(torch.eye(5)[[4, 0]], facets, full=page)
    assert found.boxes(0) == [(0, 0.5, 0.5, 1, 0.5), (0.5, 0.5, 1, 1, 0.5)]
    assert found.boxes(0, "full") == [(0.5, 0.5, 1, 1, 1)]
    assert sum(place.weight for place in found.boxes(1)) == pytest.approx(2 / 3)
    assert found.boxes(1, "full") == []
    assert found.to_json()["grid"] == [2, 2]


def test_a_facet_nobody_asks_for_and_one_without_members():
    assignment, demand = torch.tensor([0, 0, 1, 1]), torch.tensor([0.5, 0.5, 0.0, 0.0])
    facets = pf.Facets(vectors=AXES[[0, 2, 3]], assignment=assignment, demand=demand)
    found = explain(AXES[[2, 3]], facets, layout=Layout(boxes=[box(i) for i in range(4)]))
    assert [place.weight for place in found.boxes(0)] == [0.5, 0.5]
    assert (found.tokens[1].members, found.boxes(1)) == (0, [])
    assert found.heatmap(1).image.size[0] > 100


@given(data=st.data())
def test_laws_of_weights_and_scores(data):
    page, facets, query = drawn(data)
    found = explain(query, facets, full=page)
    assert found.score == pytest.approx(float(maxsim_reference(query, [facets])[0]), abs=1e-5)
    assert found.full_score == pytest.approx(float(maxsim_reference(query, [page])[0]), abs=1e-5)
    assert found.score == pytest.approx(sum(one.score for one in found.tokens), abs=1e-6)
    sums = {}
    for i, one in enumerate(found.tokens):
        assert one.facet == int(np.argmax(facets.vectors.numpy() @ query[i]))
        assert one.full.row == int(np.argmax(page.vectors.numpy() @ query[i]))
        assert float(one.weights.sum()) == pytest.approx(1 if one.members else 0, abs=1e-5)
        assert set(torch.nonzero(one.weights).flatten().tolist()) <= set(facets.members(one.facet).tolist())
        places = found.boxes(i)
        assert [place.weight for place in places] == sorted((place.weight for place in places), reverse=True)
        assert sum(place.weight for place in found.boxes(i, "full")) in (0, 1)
        for place in places:
            sums[place[:4]] = sums.get(place[:4], 0) + place.weight
    assert {place[:4]: pytest.approx(place.weight, abs=1e-5) for place in found.boxes()} == sums


def test_the_json_has_it_all_in_finite_numbers():
    full = pf.PageVectors(AXES.clone())
    found = four_words(full=full, text="first third", tokens=["first", "third"], source="report.pdf", number=6)
    read = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert read.pop("image").startswith("There is no picture")
    first, third = read.pop("tokens")
    assert third["boxes"] == [pytest.approx([*box(2), 1.0])]
    assert third["full"] == {"row": 2, "score": 0.5, "boxes": [pytest.approx([*box(2), 1.0])]}
    assert (first["text"], first["facet"], first["score"], first["members"]) == ("first", 0, 0.5, 2)
    assert first["boxes"] == [pytest.approx([*box(0), 0.75])]
    assert [one[4] for one in read.pop("boxes")] == [1.0, 0.75]
    assert len(read.pop("full_boxes")) == 2
    assert read == {
        "page": "report.pdf#6",
        "source": "report.pdf",
        "number": 6,
        "query": "first third",
        "size": None,
        "score": 1.0,
        "full_score": 1.0,
        "n": 4,
        "k": 2,
        "weights": "assignment",
        "grid": None,
    }
    without = four_words().to_json()
    assert without["full_boxes"] is None
    assert without["tokens"][0]["full"] is None
    assert without["tokens"][0]["text"] is None


def test_a_page_of_unknown_layout_still_has_tokens_and_scores():
    facets = pf.Facets(vectors=AXES[:2], assignment=torch.tensor([0, 1, 1]))
    found = explain(AXES[:3], facets)
    assert found.score == 2.0
    assert found.boxes() == []
    assert found.to_json()["boxes"] == []
    assert found.heatmap().image.size[0] > 100
    assert "not known where" in found.html()


def test_rows_that_are_not_finite_are_never_picked():
    vectors = AXES.clone()
    vectors[0] = float("nan")
    facets = pf.Facets(vectors=AXES[[1]], assignment=torch.tensor([-1, 0, 0, 0]))
    found = explain(-AXES[[1, 0]], facets, full=pf.PageVectors(vectors))
    assert found.tokens[0].full == (2, 0)
    assert found.tokens[1].full.row in (1, 2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.full((1, 4), torch.nan)}, "NaN"),
        ({"query": torch.ones(1, 3)}, "dimension 3"),
        ({"full": pf.PageVectors(torch.ones(2, 4))}, "pass the page that they were made from"),
        ({"weights": "transport"}, "no transport plan"),
        ({"layout": Layout(grid=(2, 2))}, "4 cells"),
    ],
)
def test_what_cannot_be_explained(change, message):
    facets = pf.Facets(vectors=AXES[:2], assignment=torch.tensor([0, 1, 1]), id="page")
    with pytest.raises(InputError, match=message):
        explain(**{"query": AXES[:1], "facets": facets, **change}).boxes()


def test_what_cannot_be_shown(tmp_path):
    found = four_words()
    for ask, message in (
        (lambda: found.boxes(2), "no token 2"),
        (lambda: found.boxes(-1), "no token -1"),
        (lambda: found.boxes(view="full"), "full vectors of page 'report.pdf#6' are not kept"),
        (lambda: found.heatmap(view="both"), "not kept"),
        (lambda: found.html("both"), "no full view"),
        (lambda: found.save(tmp_path / "why.txt"), r"end it in \.html, \.json, \.png"),
        (lambda: found.save(tmp_path / "no" / "why.html"), "create it first"),
        (lambda: found.save(tmp_path / "why.json", view="full"), "holds every view"),
    ):
        with pytest.raises(InputError, match=message):
            ask()
    assert not list(tmp_path.iterdir())


class Reading(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.setdefault(self.tags[-1] if self.tags else None, []).append(data)


def hostile(**options):
    facets = pf.Facets(vectors=AXES[:2], assignment=torch.tensor([0, 1, 1, 0]), id=HOSTILE)
    return explain(
        AXES[:2],
        facets,
        full=pf.PageVectors(AXES, boxes=[box(i) for i in range(4)]),
        text=HOSTILE,
        tokens=[HOSTILE, "plain"],
        source=HOSTILE,
        number=0,
        **options,
    )


def test_hostile_text_stays_text():
    found = hostile()
    read = Reading(found.html())
    plain = Reading(four_words(full=pf.PageVectors(AXES), text="x", tokens=["x", "y"], source="x", number=0).html())
    assert read.tags == plain.tags
    assert not [name for name, _ in read.attributes if name.startswith("on") or name == "style"]
    assert [value[:16] for name, value in read.attributes if name in ("src", "href")] == ["data:image/webp;"]
    assert any("</script><img src=x" in text for text in read.texts["bdi"])
    data = json.loads(read.texts["script"][0])
    assert data["tokens"][0]["text"] == HOSTILE
    assert data["query"] == HOSTILE.replace("\ud800", "\N{REPLACEMENT CHARACTER}")
    assert "\x00" not in found.html()
    found.heatmap(view="both")


def test_only_its_own_style_and_script_may_run():
    text = four_words().html()
    policy = dict(part.split(" ", 1) for part in re.search(r'content="(default-src[^"]*)"', text)[1].split("; "))
    allowed = {name: value.replace("&#x27;", "'") for name, value in policy.items()}
    assert (allowed["default-src"], allowed["img-src"], allowed["form-action"]) == ("'none'", "data:", "'none'")
    for kind in ("style", "script"):
        inside = re.search(rf"<{kind}>(.*?)</{kind}>", text, flags=re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert allowed[f"{kind}-src"] == f"'sha256-{digest}'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium that is driven as a user would, at phone width or a desk's."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("there is no chromium with chromedriver to open the page with")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.mark.slow
def test_a_browser_shows_each_token_by_pointer_and_by_keyboard(tmp_path, browser):
    browser.set_window_size(1300, 900)
    browser.get(hostile().save(tmp_path / "why.html").as_uri())

    def drawn():
        """How many boxes the full and the compressed page have, where they are seen."""
        figures = browser.find_elements("css selector", "figure")
        return [len(one.find_elements("css selector", "rect")) for one in figures if one.is_displayed()]

    assert HOSTILE[:20] in browser.title
    assert drawn() == [2, 4]
    chips = browser.find_elements("css selector", "[data-token]")
    assert [chip.text for chip in chips[::2]] == ["all tokens", "plain"]
    ActionChains(browser).move_to_element(chips[2]).perform()
    assert drawn() == [1, 2]
    assert "“plain” scores 1.000 with facet 1" in browser.find_element("id", "about").text
    ActionChains(browser).move_to_element(browser.find_element("id", "about")).perform()
    assert drawn() == [2, 4]
    chips[2].click()
    ActionChains(browser).move_to_element(browser.find_element("id", "about")).perform()
    assert (drawn(), chips[2].get_attribute("aria-pressed")) == ([1, 2], "true")
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert drawn() == [2, 4]
    ActionChains(browser).send_keys(Keys.ARROW_LEFT).perform()
    assert browser.switch_to.active_element == chips[1]
    assert drawn() == [1, 2]
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    for view, count in (("full", [2]), ("compressed", [4]), ("both", [2, 4])):
        browser.find_element("css selector", f"[data-view={view}]").click()
        assert drawn() == count
    assert len(browser.find_elements("css selector", "img")) == 2
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_a_browser_at_phone_width_shows_the_whole_page_and_melts_patches(tmp_path, browser):
    page = pf.PageVectors(torch.eye(12), grid=(3, 4))
    facets = pf.Facets(vectors=torch.eye(12)[[4, 11]], assignment=torch.tensor([0] * 8 + [1] * 4))
    found = explain(torch.eye(12)[[4]], facets, full=page, layout=Layout((3, 4), size=(300, 400)))
    browser.set_window_size(500, 900)
    browser.get(found.save(tmp_path / "why.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    ratio = browser.execute_script("const s = document.querySelector('img'); return s.clientWidth / s.clientHeight")
    assert ratio == pytest.approx(0.75, abs=0.01)
    script = """
        const canvas = document.querySelectorAll("canvas")[arguments[0]];
        const [x, y] = [Math.round(canvas.width * arguments[1]), Math.round(canvas.height * arguments[2])];
        return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data]"""
    magenta = pytest.approx([217, 48, 135, 255], abs=20)
    assert browser.execute_script(script, 0, 1 / 2, 3 / 8) == magenta
    assert browser.execute_script(script, 0, 1 / 6, 7 / 8)[3] == 0
    assert browser.execute_script(script, 1, 1 / 6, 1 / 8) == magenta
    assert browser.execute_script(script, 1, 1 / 2, 7 / 8)[3] == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A document of two pages whose words lie at known places, and indexes of it."""
    folder = tmp_path_factory.mktemp("explained")
    pages = [
        [("giraffe", 60, 700), ("the zebra and the antelope", 60, 400), ("revenue of the zoo", 60, 100)],
        [("balance sheet", 300, 600), ("invoices and payments", 60, 300)],
    ]
    (folder / "docs").mkdir()
    (folder / "docs" / "zoo.pdf").write_bytes(
        pdf([PdfSheet("".join(show(text, x, y) for text, x, y in lines)) for lines in pages])
    )
    return folder


@pytest.fixture(scope="module")
def index(folder):
    return pf.Index.build(folder / "zoo.pf", folder / "docs", compressor=pf.compressor("ward", ratio=0.5), full=True)


@pytest.fixture(scope="module")
def magic(folder):
    method = pf.Magic(ratio=0.4, source="uniform")
    return pf.Index.build(folder / "magic.pf", folder / "docs", compressor=method, full=True)


@pytest.fixture(scope="module")
def lean(folder):
    method = pf.Magic(ratio=0.4, source="uniform")
    return pf.Index.build(folder / "lean.pf", folder / "docs", compressor=method, dtype="int8")


def inside(place, left, top, right, bottom):
    return left <= place.left <= place.right <= right and top <= place.top <= place.bottom <= bottom


def test_a_hit_shows_the_word_that_made_it_one(index):
    hit = index.search("giraffe", k=1)[0]
    assert hit.page == "zoo.pdf#0"
    found = hit.explain()
    assert "".join(one.text for one in found.tokens) == "giraffe"
    (top,) = {place[1] for place in found.boxes(view="full")}
    assert 1 - 725 / 792 < top < 1 - 700 / 792
    assert all(inside(place, 0.09, 0.08, 0.25, 0.125) for place in found.boxes(view="full"))
    assert inside(hit.boxes()[0], 0.09, 0.08, 0.25, 0.125)
    assert (found.source, found.number, found.layout.size) == ("zoo.pdf", 0, (612, 792))
    assert found.sheet.missing is None


@pytest.mark.parametrize("query", ["what does the zebra eat?", "Invoices, payments", "giraffe giraffe"])
def test_scores_are_those_of_search(index, magic, lean, query):
    for opened in (index, magic, lean):
        hits = opened.search(query, k=2)
        assert [hit.explain().score for hit in hits] == pytest.approx([hit.score for hit in hits], abs=1e-4)
        assert all(hit.explain().page == hit.page for hit in hits)
    rescored = index.search(query, k=2, rescore=2)
    assert [hit.explain().full_score for hit in rescored] == pytest.approx([hit.score for hit in rescored], abs=1e-4)
    vectors = index.encoder.encode_queries([query])[0]
    assert index.explain(vectors, "zoo.pdf#1").score == pytest.approx(index.explain(query, "zoo.pdf#1").score)
    assert index.explain(vectors, "zoo.pdf#1").query is None


def coloured(path):
    """Where a saved picture has colour, above its legend: rows and columns in shares of its height and width."""
    with Image.open(path) as picture:
        saturation = np.asarray(picture.convert("HSV")).astype(int)[..., 1]
    height, width = saturation.shape
    rows, columns = np.nonzero((saturation > 120)[: int(0.95 * height)])
    return rows / height, columns / width


def test_the_picture_of_a_hit(index, tmp_path):
    hit = index.search("giraffe", k=1)[0]
    rows, columns = coloured(hit.explain().heatmap(view="full").save(tmp_path / "full.png"))
    assert len(rows) > 500
    assert (0.08 < rows.min(), rows.max() < 0.18) == (True, True)
    assert (0.08 < columns.min(), columns.max() < 0.28) == (True, True)
    rows, columns = coloured(hit.heatmap().save(tmp_path / "why.png"))
    within = (0.08 < rows) & (rows < 0.18) & (0.08 < columns) & (columns < 0.28)
    assert within.sum() > 500


def test_the_transport_plan_on_request(magic):
    found = magic.explain("zebra", "zoo.pdf#0", weights="transport")
    full = magic.reader.page("zoo.pdf#0")
    plan = dataclasses.replace(magic.compressor, keep_plan=True).compress(full).plan
    for one in found.tokens:
        assert float(one.weights.sum()) == pytest.approx(1, abs=1e-4)
        torch.testing.assert_close(one.weights, plan[one.facet])
    assert found.score == magic.explain("zebra", "zoo.pdf#0").score
    assert found.to_json()["weights"] == "transport"


def test_a_plan_that_cannot_be_told(index, lean, magic):
    with pytest.raises(InputError, match="ward has no transport plan: use weights='assignment'"):
        index.explain("zebra", "zoo.pdf#0", weights="transport")
    with pytest.raises(InputError, match="build the index with full vectors"):
        lean.explain("zebra", "zoo.pdf#0", weights="transport")
    facets, full = magic.reader.facets("zoo.pdf#0"), magic.reader.page("zoo.pdf#0")
    with pytest.raises(InputError, match="give other facets"):
        with_plan(dataclasses.replace(facets, assignment=facets.assignment.roll(1)), full, magic.compressor, None)


def test_facets_that_come_in_another_order_have_the_plan_of_their_own(magic):
    facets, full = magic.reader.facets("zoo.pdf#0"), magic.reader.page("zoo.pdf#0")
    order = torch.randperm(facets.k, generator=torch.Generator().manual_seed(1))
    shuffled = dataclasses.replace(facets, vectors=facets.vectors[order], assignment=order.argsort()[facets.assignment])
    plan = with_plan(facets, full, magic.compressor, None).plan
    torch.testing.assert_close(with_plan(shuffled, full, magic.compressor, None).plan, plan[order])


def test_an_index_without_full_vectors(lean, tmp_path):
    found = lean.search("zebra", k=1)[0].explain()
    assert found.full_score is None
    with pytest.raises(InputError, match="build the index with full vectors"):
        found.boxes(view="full")
    assert 'data-view="full"' not in found.html()
    with Image.open(found.save(tmp_path / "why.webp")) as picture:
        assert picture.width < picture.height


def test_both_views_where_full_vectors_are_kept(index, tmp_path):
    found = index.explain("zebra", "zoo.pdf#0")
    with (
        Image.open(found.save(tmp_path / "both.jpg")) as both,
        Image.open(found.save(tmp_path / "one.jpg", view="full")) as one,
    ):
        assert both.width > 1.8 * one.width
    assert json.loads(found.save(tmp_path / "why.json").read_text(encoding="utf-8")) == found.to_json()
    assert found.to_json()["image"] is True
    assert found.save(tmp_path / "why.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_that_is_not_there(index):
    with pytest.raises(InputError, match=r"no page 'zoo.pdf#7'"):
        index.explain("zebra", "zoo.pdf#7")


def test_without_an_index_there_is_no_evidence():
    hit = pf.rank(AXES, [AXES], k=1)[0]
    with pytest.raises(InputError, match="search an index"):
        hit.explain()


def test_a_document_that_changes_or_goes_leaves_a_blank_page(folder, tmp_path):
    source = tmp_path / "docs"
    shutil.copytree(folder / "docs", source)
    index = pf.Index.build(tmp_path / "zoo.pf", source)
    before = index.explain("giraffe", "zoo.pdf#0")
    hit = index.search("giraffe", k=1)[0]
    (source / "zoo.pdf").write_bytes(pdf([PdfSheet(show("another", 60, 700))]))
    changed = index.explain("giraffe", "zoo.pdf#0")
    assert "no longer" in changed.to_json()["image"]
    assert changed.boxes() == before.boxes()
    (source / "zoo.pdf").unlink()
    gone = hit.explain()
    assert gone.boxes() == before.boxes()
    width, height = gone.sheet.image.size
    assert (max(width, height), width / height) == (1200, pytest.approx(612 / 792, rel=0.01))
    assert "zoo.pdf#0: is no longer in" in gone.to_json()["image"]
    assert 'class="note"' in gone.html()


def test_what_rows_of_a_query_stand_for():
    words = pf.encoder("words")
    for query in ("How many stores, net?", "Übergröße naïve 東京", "x" * 300, "[SEP] a", "café \U0001f600"):
        texts = words.query_tokens(query)
        assert len(texts) == len(words.encode_queries([query])[0])
        assert "".join(texts) == "".join(query.split())


def test_a_sheet_of_ones_own():
    layout = Layout(size=(100, 50))
    found = four_words(sheet=Sheet(layout, None))
    assert found.sheet.image.size == (1200, 600)
