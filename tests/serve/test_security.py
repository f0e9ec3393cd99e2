"""What strangers and other sites' pages can make the server do: nothing."""

import re
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pagefacets.serve.app import create_app
from pagefacets.serve.guard import Hosts
from pagefacets.serve.limits import Limits
from tests.serve.library import SCRIPT, address


@pytest.fixture(scope="module")
def client(index):
    with TestClient(create_app(index), base_url="http://localhost") as one:
        yield one


OUTSIDE = [
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "/etc/passwd",
    "//etc/passwd",
    "file:///etc/passwd",
    "..\\..\\windows\\win.ini",
    "ferries.pdf",
    "ferries.pdf#99",
    "ferries.pdf#-1",
    "./ferries.pdf#0",
    "deep/../ferries.pdf#0",
    "ferries.pdf#0\x00",
    "FERRIES.PDF#0",
    "' OR 1=1 --",
    "\udcff",
    "",
]


@pytest.mark.parametrize("id", OUTSIDE)
def test_only_ids_of_the_index_are_found(client, id, index):
    """Each of these would name a file beside the index, or a page by another spelling."""
    secret = index.parent / "documents" / "secret.txt"
    secret.write_text("the secret")
    for path in (address_of(id), f"{address_of(id)}/image", f"/pages/{id.split('#')[0]}"):
        if not path.isprintable() or not path.isascii():
            continue
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert "secret" not in answer.text
        assert "root:" not in answer.text
    answer = client.get("/evidence", params={"page": id.encode("utf-8", "replace").decode(), "q": "ferry"})
    assert answer.status_code == 404


def address_of(id):
    return address(id.encode("utf-8", "surrogateescape"))


@given(path=st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), max_size=40))
def test_no_path_makes_the_server_fail(client, path):
    for prefix in ("/pages/", "/static/", "/"):
        assert client.get(prefix + path.replace("#", "%23").replace("?", "%3F")).status_code in (200, 400, 404, 405)


@given(q=st.text(max_size=200))
def test_no_question_makes_the_server_fail(client, q):
    assert client.post("/search", json={"q": q}).status_code in (200, 400)


@pytest.mark.parametrize(
    "condition",
    [
        "NOT " * 120 + "true",
        "(" * 240 + "1" + ")" * 240,
        "id IN (SELECT 1)",
        "1/0 = 1",
        "id LIKE '%'; DROP TABLE pages",
    ],
)
def test_no_filter_makes_the_server_fail(client, condition):
    answer = client.get("/search", params={"q": "ferry", "filter": condition})
    assert answer.status_code in (200, 400)
    assert client.get("/health").json()["pages"] == 6


def test_lengths_are_bounded(client):
    limits = Limits()
    long = "x" * (limits.query_characters + 1)
    for path, asked in (("/search", {"q": long}), ("/evidence", {"q": long, "page": "ferries.pdf#0"})):
        answer = client.get(path, params=asked)
        assert answer.status_code == 400
        assert "1,001 characters" in answer.json()["error"]
    assert client.get("/search", params={"q": "wind " * 200}).status_code == 200
    assert client.get("/search", params={"q": "x", "filter": "x" * 501}).status_code == 400
    answer = client.post("/search", json={"q": "x" * 20_000})
    assert (answer.status_code, "16,384 bytes" in answer.json()["error"]) == (413, True)
    assert client.get(f"{address('ferries.pdf#0')}/image?longest=100000").status_code == 400


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil.example:80@localhost", 421),
        ("127.0.0.1.evil.example", 421),
        ("192.168.0.7", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
def test_a_name_that_somebody_pointed_here_is_not_answered(client, host, status):
    for path in ("/", "/search?q=ferry", "/health"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == status
        assert status == 200 or "is not served here" in answer.json()["error"]


def test_addresses_and_names_are_answered_where_they_were_asked_for():
    hosts = Hosts(["search.example"], addresses=True)
    assert all(map(hosts.allows, ("search.example", "192.168.0.7:8080", "[fe80::1]:8080", "10.0.0.1", "localhost")))
    assert not any(map(hosts.allows, ("evil.example", "192.168.0.7.evil.example", "[evil]", "1.2.3", "10.0.0.1:x")))


def test_browsers_are_told_to_run_nothing_else(client):
    for path in ("/", "/static/app.js", "/search?q=ferry", "/nowhere", f"{address('hostile.pdf#0')}/image"):
        headers = client.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert not [name for name in headers if name.startswith("access-control")]


def test_other_sites_may_not_read_or_preflight(client):
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    answer = client.options("/search", headers=asked)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_scripts_come_back_as_json_and_never_as_html(client):
    for answer in (
        client.get("/search", params={"q": SCRIPT}),
        client.get("/search", params={"q": "ferry", SCRIPT: "1"}),
        client.get("/evidence", params={"q": SCRIPT, "page": "hostile.pdf#0"}),
        client.get("/evidence", params={"q": "x", "page": SCRIPT}),
        client.get(f"/pages/{SCRIPT}"),
    ):
        assert answer.headers["content-type"] == "application/json"


def test_the_page_makes_no_markup_of_data():
    """No sink of markup in any script, no inline code in the page, nothing from elsewhere."""
    static = files("pagefacets.serve").joinpath("static")
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser")
    for one in static.iterdir():
        text = one.read_text(encoding="utf-8")
        assert not sinks.search(text), one.name
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), one.name
        if one.name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", text)
