"""The JSON API: every answer is as its description says, and says what the library says."""

import asyncio
import io
import shutil
import time

import httpx
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from PIL import Image
from starlette.testclient import TestClient

from pagefacets.pipeline import Index
from pagefacets.serve.app import create_app
from pagefacets.serve.limits import Limits
from pagefacets.serve.shelf import Shelf
from tests.pages.pdfs import pdf
from tests.serve.library import address, documents, sheet

FERRY = "deep/er/100%25 & co #2?.pdf#0"


@pytest.fixture(scope="module")
def client(index):
    with TestClient(create_app(index), base_url="http://localhost") as one:
        yield one


@pytest.fixture(scope="module")
def described(client):
    return client.get("/openapi.json").json()


@pytest.fixture
def own(index, tmp_path):
    """A copy of the index and of its documents, for a test that changes them."""
    shutil.copytree(index.parent / "documents", tmp_path / "documents")
    Index.build(tmp_path / "own.pf", tmp_path / "documents")
    return tmp_path


def agrees(described, path, response, method="get"):
    """The JSON of a response, which is as the description of its route has it."""
    operation = described["paths"][path][method]
    said = operation["responses"][str(response.status_code)]
    if "$ref" in said:
        said = described["components"]["responses"][said["$ref"].rpartition("/")[2]]
    kind = response.headers["content-type"].partition(";")[0]
    schema = said["content"][kind]["schema"]
    if kind == "application/json":
        Draft202012Validator({**schema, "components": described["components"]}).validate(response.json())
        return response.json()
    return response.content


def test_the_description_is_openapi_and_names_every_route(client, described):
    validate(described)
    documented = {path.replace("{id}", "{rest:path}").removesuffix("/image") for path in described["paths"]}
    served = {route.path for route in client.app.app.routes}
    assert served == documented | {"/", "/static/{name}", "/openapi.json"}


def test_search_says_what_the_library_says(client, described, index):
    hits = Index.open(index).search("battery ferry", k=3)
    found = agrees(described, "/search", client.get("/search", params={"q": "battery ferry", "k": 3}))
    assert found["hits"] == [
        {"id": hit.page, "source": hit.source, "number": hit.number, "score": pytest.approx(hit.score)} for hit in hits
    ]
    assert found["took_ms"] > 0
    body = {"q": "battery ferry", "k": 3, "filter": None, "rescore": None}
    by_body = agrees(described, "/search", client.post("/search", json=body), "post")
    assert by_body["hits"] == found["hits"]


def test_filter_and_rescore_reach_the_index(client, described, index):
    asked = {"q": "battery ferry", "k": 2, "filter": "source = 'ferries.pdf' AND number > 0"}
    found = agrees(described, "/search", client.get("/search", params=asked))["hits"]
    assert {(hit["source"], hit["number"]) for hit in found} == {("ferries.pdf", 1), ("ferries.pdf", 2)}
    exact = Index.open(index).search("battery ferry", k=2, rescore=6)
    found = agrees(
        described, "/search", client.post("/search", json={"q": "battery ferry", "k": 2, "rescore": 6}), "post"
    )
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in exact])


def test_a_page_by_its_odd_id(client, described, index):
    page = agrees(described, "/pages/{id}", client.get(address(FERRY)))
    held = Index.open(index).reader.facets(FERRY)
    assert (page["id"], page["source"], page["number"]) == (FERRY, FERRY.removesuffix("#0"), 0)
    assert (page["n"], page["k"], page["size"]) == (held.n, held.k, [612, 792])
    assert 1 <= page["k_eff"] <= page["k"]
    for longest, side in ((1, 160), (160, 160), (161, 320), (2000, 2000)):
        image = client.get(f"{address(FERRY)}/image", params={"longest": longest})
        drawn = Image.open(io.BytesIO(agrees(described, "/pages/{id}/image", image)))
        assert drawn.format == "JPEG"
        assert max(drawn.size) == side
        assert drawn.size[0] / drawn.size[1] == pytest.approx(612 / 792, abs=0.01)


def test_an_id_that_ends_in_image_is_told_from_its_image(client):
    assert client.get("/pages/image%2Fimage.pdf%230").json()["id"] == "image/image.pdf#0"
    assert client.get("/pages/image/image.pdf%230").json()["id"] == "image/image.pdf#0"
    assert client.get("/pages/image/image.pdf%230/image").headers["content-type"] == "image/jpeg"


def test_a_picture_that_is_known_is_not_sent_again(client):
    first = client.get(f"{address('ferries.pdf#0')}/image")
    again = client.get(f"{address('ferries.pdf#0')}/image", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"{address('ferries.pdf#1')}/image", headers={"if-none-match": first.headers["etag"]})
    assert other.status_code == 200


def test_evidence_is_the_librarys(client, described, index):
    asked = {"page": "ferries.pdf#1", "q": "wind speed"}
    found = agrees(described, "/evidence", client.get("/evidence", params=asked))
    expected = Index.open(index).explain("wind speed", "ferries.pdf#1").to_json()
    assert found.pop("took_ms") > 0
    assert found == expected
    assert [one["text"] for one in found["tokens"]] == ["wind", "speed"]
    assert found["boxes"]
    assert found["full_boxes"]


def test_stats_health_and_metrics(client, described):
    assert agrees(described, "/stats", client.get("/stats"))["pages"] == 6
    assert agrees(described, "/health", client.get("/health")) == {
        "status": "ok",
        "pages": 6,
        "version": client.get("/stats").json()["version"],
        "why": None,
    }
    before = numbers(client)
    for _ in range(3):
        client.get("/search", params={"q": "ferry"})
    client.get("/search")
    client.get("/nowhere/at/all")
    text = agrees(described, "/metrics", client.get("/metrics")).decode()
    after = numbers(client)
    ok, bad = (f'pagefacets_requests_total{{route="search",method="GET",status="{s}"}}' for s in (200, 400))
    assert after[ok] - before.get(ok, 0) == 3
    assert after[bad] - before.get(bad, 0) == 1
    assert after['pagefacets_requests_total{route="other",method="GET",status="404"}'] >= 1
    buckets = [value for name, value in after.items() if name.startswith('pagefacets_request_seconds_bucket{route="se')]
    assert buckets == sorted(buckets)
    assert buckets[-1] == after['pagefacets_request_seconds_count{route="search"}']
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.split(" ")) == 2
    assert after["pagefacets_index_pages"] == 6


def numbers(client):
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "q is missing or empty"),
        ({"q": "  "}, "q is missing or empty"),
        ({"q": "?!"}, None),
        ({"q": "ferry", "k": "0"}, "k must be a whole number from 1 to 100"),
        ({"q": "ferry", "k": "1e3"}, "k must be a whole number"),
        ({"q": "ferry", "k": "٣"}, "k must be a whole number"),
        ({"q": "ferry", "rescore": "5"}, "rescore must be a whole number from 10"),
        ({"q": "ferry", "filter": "source ="}, "filter"),
        ({"q": "ferry", "filter": "nonsense = 3"}, "filter"),
        ({"q": "ferry", "kk": "3"}, "there is no parameter 'kk'"),
    ],
)
def test_bad_searches_are_told_why_in_one_sentence(client, described, asked, sentence):
    answer = client.get("/search", params=asked)
    if sentence is None:
        assert answer.status_code in (200, 400)
        return
    assert answer.status_code == 400
    said = agrees(described, "/search", answer)["error"]
    assert sentence in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"[" * 10_000, "application/json", 400),
        (b'{"q": 3}', "application/json", 400),
        (b'{"q": "x", "k": 1.5}', "application/json", 400),
        (b'{"q": "x", "k": true}', "application/json", 400),
        (b'{"q": "x", "filter": 3}', "application/json", 400),
        (b"q=x", "application/x-www-form-urlencoded", 415),
        (b'{"q": "x"}', "text/plain", 415),
        (b"\xff\xfe", "application/json", 400),
        (b'{"q": "\\ud800 ferry"}', "application/json", 200),
    ],
)
def test_bad_bodies(client, described, content, kind, status):
    answer = client.post("/search", content=content, headers={"content-type": kind})
    assert answer.status_code == status
    agrees(described, "/search", answer, "post")


def test_other_methods_and_paths_are_refused_in_json(client):
    assert client.delete("/search").status_code == 405
    for path in ("/nowhere", "/static/nowhere.js", "/pages/", "/search/"):
        answer = client.get(path, follow_redirects=False)
        assert (answer.status_code, list(answer.json())) == (404, ["error"])
    assert client.head("/search", params={"q": "ferry"}).content == b""


def test_pages_written_by_another_process_are_found_without_a_restart(own):
    shelf = Shelf(own / "own.pf")
    with TestClient(create_app(shelf, limits=Limits(refresh_seconds=0.05)), base_url="http://localhost") as client:
        assert client.get("/health").json()["pages"] == 6
        encoder = shelf.index.encoder
        (own / "more").mkdir()
        (own / "more" / "new.pdf").write_bytes(pdf([sheet(["Penguins nest on the northern breakwater."])]))
        Index.open(own / "own.pf").add(own / "more")
        wait(lambda: client.get("/health").json()["pages"] == 7)
        assert client.get("/search", params={"q": "penguins"}).json()["hits"][0]["id"] == "new.pdf#0"
        assert client.get(f"{address('new.pdf#0')}/image").status_code == 200
        assert client.get("/stats").json()["pages"] == 7
        assert shelf.index.encoder is encoder
        Index.open(own / "own.pf").delete(document="new.pdf")
        wait(lambda: client.get("/health").json()["pages"] == 6)
        assert client.get(f"{address('new.pdf#0')}/image").status_code == 404


def test_an_index_that_disappears_is_served_on_and_said_to_be_stale(own):
    limits = Limits(refresh_seconds=0.05)
    with TestClient(create_app(own / "own.pf", limits=limits), base_url="http://localhost") as client:
        client.get("/search", params={"q": "ferry"})
        (own / "own.pf").rename(own / "away")
        wait(lambda: client.get("/health").json()["status"] == "stale")
        why = client.get("/health").json()["why"]
        assert "own.pf" in why
        assert str(own) not in why
        assert client.get("/search", params={"q": "ferry"}).status_code == 200
        Index.build(own / "own.pf", own / "documents" / "ferries.pdf")
        wait(
            lambda: (
                client.get("/health").json() | {"version": 0} == {"status": "ok", "pages": 3, "version": 0, "why": None}
            )
        )


def test_a_shelf_that_was_asked_nothing_yet_tells_of_an_index_that_is_gone(own):
    shelf = Shelf(own / "own.pf")
    shelf.warm()
    (own / "own.pf").rename(own / "away")
    assert not shelf.refresh()
    assert "own.pf" in shelf.stale
    assert str(own) not in shelf.stale


def wait(holds, seconds=20):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_document_that_is_gone_costs_its_picture_only(own):
    with TestClient(create_app(own / "own.pf"), base_url="http://localhost") as client:
        (own / "documents" / "ferries.pdf").unlink()
        answer = client.get(f"{address('ferries.pdf#0')}/image")
        assert answer.status_code == 404
        assert "there is no picture of this page" in answer.json()["error"]
        assert str(own) not in answer.text
        assert client.get("/search", params={"q": "battery ferry"}).json()["hits"]
        found = client.get("/evidence", params={"page": "ferries.pdf#0", "q": "battery ferry"})
        assert isinstance(found.json()["image"], str)
        assert str(own) not in found.text


def test_pictures_stay_within_their_room(index):
    """With room for about two pictures, older ones are drawn again, and the count of bytes is kept."""
    with TestClient(create_app(index), base_url="http://localhost") as client:
        size = len(client.get(f"{address('ferries.pdf#0')}/image?longest=320").content)
    limits = Limits(picture_bytes=int(2.5 * size))
    with TestClient(create_app(index, limits=limits), base_url="http://localhost") as client:
        for number in (0, 1, 2, 0, 0):
            assert client.get(f"{address(f'ferries.pdf#{number}')}/image?longest=320").status_code == 200
            assert numbers(client)["pagefacets_picture_bytes"] <= limits.picture_bytes
        assert numbers(client)["pagefacets_picture_misses_total"] == 4
        assert numbers(client)["pagefacets_picture_hits_total"] == 1


def test_beyond_the_room_requests_are_told_to_come_again(index):
    """Thirty at once into a room for four: some are answered, the others hear 503, and afterwards all is well."""

    async def main():
        app = create_app(index, limits=Limits(threads=1, waiting=4))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asked = [client.get("/search", params={"q": "ferry"}) for _ in range(30)]
            answers = await asyncio.gather(*asked)
            later = await client.get("/search", params={"q": "ferry"})
        return answers, later

    answers, later = asyncio.run(main())
    refused = [one for one in answers if one.status_code == 503]
    assert {one.status_code for one in answers} == {200, 503}
    assert len(answers) - len(refused) >= 4
    assert all(one.headers["retry-after"] == "1" and "busy" in one.json()["error"] for one in refused)
    assert later.status_code == 200


def test_many_at_once_get_what_each_would_get_alone(client, index):
    """Questions that are encoded and scored together have the hits they have alone."""
    questions = [
        f"{word} {other}" for word in ("battery", "wind", "holidays", "soup") for other in ("ferry", "crew", "café")
    ]

    async def main():
        transport = httpx.ASGITransport(create_app(index))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as together:
            return await asyncio.gather(*(together.get("/search", params={"q": q, "k": 6}) for q in questions))

    for question, answer in zip(questions, asyncio.run(main()), strict=True):
        alone = client.get("/search", params={"q": question, "k": 6}).json()["hits"]
        assert [hit["id"] for hit in answer.json()["hits"]] == [hit["id"] for hit in alone]
        assert [hit["score"] for hit in answer.json()["hits"]] == pytest.approx(
            [hit["score"] for hit in alone], abs=1e-4
        )


def test_an_empty_index_is_served(tmp_path):
    index = Index.build(tmp_path / "empty.pf", documents(tmp_path / "documents") / "hostile.pdf")
    index.delete(document="hostile.pdf")
    with TestClient(create_app(tmp_path / "empty.pf"), base_url="http://localhost") as client:
        assert client.get("/search", params={"q": "ferry"}).json()["hits"] == []
        stats = client.get("/stats").json()
        assert (stats["pages"], stats["bytes"], stats["worst"]) == (0, 0, [])


def test_an_index_without_full_vectors_says_so(tmp_path):
    Index.build(tmp_path / "slim.pf", documents(tmp_path / "documents"))
    with TestClient(create_app(tmp_path / "slim.pf"), base_url="http://localhost") as client:
        found = client.get("/evidence", params={"page": "ferries.pdf#0", "q": "ferry"}).json()
        assert found["full_score"] is None
        assert found["full_boxes"] is None
        assert client.get("/stats").json()["worst_by"] == "facet_use"
        assert client.get("/search", params={"q": "ferry", "rescore": "20"}).status_code == 400
