"""The file of questions: written page by page, taken up again wherever it was left."""

import json
import threading
import time
from dataclasses import replace

import pytest
from evidence.questioners import Server, Unreadable, a_page, completion, numbered, questions_about, well

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError
from pagefacets.evidence.endpoint import Endpoint
from pagefacets.evidence.questions import Questions, ask_questions

PAGES = [a_page(number) for number in range(5)]


def ask(server, pages, path, *, model="vl", **options):
    asker = Endpoint(server.url, model, timeout=5.0, pause=0.01, retries=1, concurrency=2)
    return ask_questions(pages, asker, path, **options)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queries.jsonl"


def test_one_line_for_each_question_in_the_order_of_the_pages(path):
    def later_first(request, nth):
        time.sleep(0.03 * (5 - request["page"]))
        return well(request, nth)

    with Server(later_first) as server:
        made = ask(server, PAGES, path)
    assert made == Questions(path, "vl", pages=5, questions=25, asked=5, skipped=0)
    assert json.loads(json.dumps(made.to_dict()))["questions"] == 25
    assert lines(path) == [
        {
            "id": f"report.pdf#{page}?{place}",
            "query": question,
            "relevant": [f"report.pdf#{page}"],
            "digest": f"d{page}",
            "number": place,
            "of": 5,
            "model": "vl",
        }
        for page in range(5)
        for place, question in enumerate(questions_about(page), 1)
    ]
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_second_run_asks_nothing_and_changes_nothing(path):
    with Server(well) as server:
        ask(server, PAGES, path)
        before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        again = ask(server, PAGES, path)
        assert (again.asked, again.pages) == (0, 5)
        assert sorted(server.pages) == [0, 1, 2, 3, 4]
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before


@pytest.mark.parametrize("shape", ["cut", "zeros behind"])
def test_cut_off_at_any_byte_the_rest_is_asked_for_and_the_file_is_the_same(path, shape):
    pages = PAGES[:2]
    with Server(well) as server:
        ask(server, pages, path, count=2)
        whole = path.read_bytes()
        second = whole.index(b'{"id": "report.pdf#1')
        for end in [*range(0, len(whole), 41), second - 1, second, second + 3, len(whole) - 2, len(whole) - 1]:
            path.write_bytes(
                whole[:end] + (b"\0" * 9 if shape == "zeros behind" and whole[:end][-1:] == b"\n" else b"")
            )
            server.requests.clear()
            ask(server, pages, path, count=2)
            assert path.read_bytes() == whole, end
            done = end >= second - 1, end >= len(whole) - 1
            assert sorted(server.pages) == [page for page in range(2) if not done[page]], end


def test_a_page_that_changed_is_asked_about_again_and_its_old_questions_go(path):
    with Server(well) as server:
        ask(server, PAGES, path)
        server.requests.clear()
        changed = [*PAGES[:2], replace(a_page(9), id=PAGES[2].id), *PAGES[3:]]
        ask(server, changed, path)
        assert server.pages == [9]
    assert [line["query"] for line in lines(path)[10:15]] == questions_about(9)
    assert len(lines(path)) == 25


def test_pages_of_another_source_stay(path):
    with Server(well) as server:
        ask(server, PAGES[3:], path)
        made = ask(server, PAGES[:3], path)
    assert (made.pages, made.asked) == (3, 3)
    assert [line["relevant"] for line in lines(path)[::5]] == [[f"report.pdf#{page}"] for page in (3, 4, 0, 1, 2)]


def test_bad_answers_are_asked_for_again_and_only_those(path):
    answers = {0: ["no list", "1. One?", numbered(questions_about(0))], 1: [numbered(questions_about(1, 9))]}
    with Server(lambda request, nth: (200, completion(answers[request["page"]][nth]))) as server:
        made = ask(server, PAGES[:2], path)
    assert made.questions == 10
    assert sorted(server.pages) == [0, 0, 0, 1]
    assert [request["body"]["temperature"] > 0 for request in server.requests if request["page"] == 0] == [
        False,
        True,
        True,
    ]
    assert [line["query"] for line in lines(path)] == [*questions_about(0), *questions_about(1)]


def test_a_page_without_five_questions_is_reported_and_the_others_are_kept(path):
    refusal = "I'm sorry, I can't.\n\x1b[31mNever" + "!" * 200
    broken = Page("bad.png", "bad.png", 0, None, "d", Unreadable("bad.png"))
    reported = []
    with Server(
        lambda request, nth: (200, completion(refusal)) if request["page"] == 1 else well(request, nth)
    ) as server:
        pages = [PAGES[0], PAGES[1], broken, PAGES[2]]
        made = ask(server, pages, path, attempts=2, skipped=reported.append)
        assert server.pages.count(1) == 2
        with pytest.raises(PageError, match=r"report.pdf#1: 0 of 5 questions after 1 attempt, the last answer: "):
            ask(server, PAGES[:3], path, attempts=1)
    assert (made.pages, made.questions, made.asked, made.skipped) == (2, 10, 2, 2)
    messages = sorted(map(str, reported))
    assert messages[0] == "bad.png: the image is truncated: save it again"
    assert messages[1].startswith(
        "report.pdf#1: 0 of 5 questions after 2 attempts, the last answer: \"I'm sorry, I can't. "
    )
    assert "\x1b" not in messages[1]
    assert len(messages[1]) < 200
    assert [line["relevant"][0] for line in lines(path)[::5]] == ["report.pdf#0", "report.pdf#2"]


def test_without_leave_to_go_on_the_first_bad_page_stops_and_what_was_paid_for_stays(path):
    broken = Page("bad.png", "bad.png", 0, None, "d", Unreadable("bad.png"))
    with Server(well) as server:
        with pytest.raises(PageError, match=r"bad\.png: the image is truncated") as stopped:
            ask(server, [*PAGES, broken], path)
        assert stopped.tb is not None
        assert "pagefacets-endpoint" not in [thread.name for thread in threading.enumerate()]
        kept = {line["relevant"][0] for line in lines(path)}
        server.requests.clear()
        ask(server, PAGES, path)
        assert {f"report.pdf#{page}" for page in server.pages} == {page.id for page in PAGES} - kept
    assert len(kept) >= 3


@pytest.mark.parametrize("options", [{"count": 4}, {"model": "other"}])
def test_questions_of_another_kind_are_not_mixed_in(path, options):
    with Server(well) as server:
        ask(server, PAGES[:1], path)
        before = path.read_bytes()
        with pytest.raises(InputError, match=r"holds 5 questions a page by vl, not .*: name another output"):
            ask(server, PAGES[:2], path, **options)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        '{"query": "What?", "relevant": ["a.jpg"]}\n',
        '{"query": "What?", "relevant": ["a.jpg"]}',
        '{"id": "q1", "query": "What?"}',
        "my only copy of a thesis",
        "[1]\n",
        "\n\n",
        '{"id": "a?1", "query": "What?", "relevant": [], "digest": "d", "number": 1, "of": 1, "model": "m"}\n',
        "[" * 100_000,
    ],
)
def test_a_file_that_someone_else_wrote_is_left_alone(path, content):
    path.write_text(content)
    with Server(well) as server:
        with pytest.raises(InputError, match=r"line 1 of .*queries.jsonl is no question that was asked here"):
            ask(server, PAGES, path)
        assert server.requests == []
    assert path.read_text() == content


def test_two_runs_at_once_do_not_write_over_each_other(path):
    with Server(lambda request, nth: (hold.wait(10), well(request, nth))[1]) as server:
        hold = threading.Event()
        first = threading.Thread(target=ask, args=(server, PAGES[:1], path))
        first.start()
        while not server.requests:
            time.sleep(0.01)
        with pytest.raises(InputError, match="another run is writing to"):
            ask(server, PAGES, path)
        hold.set()
        first.join()
        assert ask(server, PAGES, path).asked == 4


def test_names_and_questions_in_any_script(path):
    odd = replace(a_page(1), id='Jahres "bericht"\n\u2028\udcff.pdf#0')
    with Server(lambda request, nth: (200, completion("1. 总收入是多少？"))) as server:
        ask(server, [odd], path, count=1)
        assert ask(server, [odd], path, count=1).asked == 0
    (line,) = lines(path)
    assert (line["relevant"], line["query"]) == ([odd.id], "总收入是多少？")


@pytest.mark.parametrize(
    ("pages", "name", "options", "why"),
    [
        (PAGES, "q.json", {}, "name a file that ends in .jsonl"),
        (PAGES, "none/q.jsonl", {}, "does not exist: create it first"),
        (PAGES, "q.jsonl", {"count": 0}, "count must lie between 1 and 100, got 0"),
        (PAGES, "q.jsonl", {"attempts": 0}, "attempts must be at least 1, got 0"),
        ([PAGES[0], PAGES[0]], "q.jsonl", {}, "two pages have the same id"),
    ],
)
def test_what_cannot_be_asked(tmp_path, pages, name, options, why):
    with Server(well) as server, pytest.raises(InputError, match=why):
        ask(server, pages, tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_no_pages_make_an_empty_file(path):
    with Server(well) as server:
        assert ask(server, [], path).questions == 0
    assert path.read_bytes() == b""
