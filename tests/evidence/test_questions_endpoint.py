"""A model behind a server on loopback that answers, stumbles, lies, hangs and refuses."""

import asyncio
import itertools
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from email.utils import formatdate

import pytest
from evidence.questioners import Server, Unreadable, a_page, completion, numbered, questions_about, well

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError, PagefacetsError
from pagefacets.evidence.asker import prompt_for
from pagefacets.evidence.endpoint import Endpoint

PROMPT = prompt_for(5)
KEY = "sk-abc.def_0123456789"


def endpoint(server, **options):
    return Endpoint(server.url, **{"timeout": 5.0, "pause": 0.01, "retries": 3, **options})


def ask(server, pages, **options):
    return dict(endpoint(server, **options).answers(pages, PROMPT))


def test_a_page_and_the_prompt_go_out_and_the_answer_comes_back():
    with Server(well) as server:
        page = a_page(7, size=(900, 1200))
        ((asked, answer),) = endpoint(server, longest=600, model="vl", max_tokens=77).answers([page], PROMPT)
    assert asked is page
    assert answer == (numbered(questions_about(7)), False)
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions"
    body = request["body"]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("vl", 77, 0)
    (message,) = body["messages"]
    assert message["role"] == "user"
    assert message["content"][1] == {"type": "text", "text": PROMPT}
    assert "Authorization" not in request["headers"]


def test_later_attempts_draw_other_words_and_settings_have_the_last_one():
    with Server(well) as server:
        list(endpoint(server).answers([a_page(1)], PROMPT, attempt=1))
        settings = {"temperature": None, "max_tokens": None, "max_completion_tokens": 500}
        list(endpoint(server, settings=settings).answers([a_page(1)], PROMPT))
    first, second = (request["body"] for request in server.requests)
    assert first["temperature"] > 0
    assert "temperature" not in second
    assert "max_tokens" not in second
    assert second["max_completion_tokens"] == 500


def test_many_pages_are_under_way_at_once_and_no_more_than_told():
    def slowly(request, nth):
        time.sleep(0.05)
        return well(request, nth)

    with Server(slowly) as server:
        answers = ask(server, [a_page(number) for number in range(12)], concurrency=3)
    assert server.most_under_way == 3
    assert {page.number: answer.text for page, answer in answers.items()} == {
        number: numbered(questions_about(number)) for number in range(12)
    }


def test_it_works_where_a_loop_already_runs():
    async def notebook():
        return [answer.text for _, answer in endpoint(server).answers([a_page(1)], PROMPT)]

    with Server(well) as server:
        assert asyncio.run(notebook()) == [numbered(questions_about(1))]


def drop(handler):
    handler.connection.close()


def cut_short(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "4000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def trickle(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.02)


def without_headers(handler):
    for _ in range(200):
        handler.wfile.write(b"H")
        handler.wfile.flush()
        time.sleep(0.02)


def flood(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" " * (1 << 20))


def no_http(handler):
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")


STUMBLES = {
    "500": ((500, "oops"), "status 500: oops"),
    "502 in HTML": ((502, "<html><h1>Bad gateway</h1>"), "status 502: <html><h1>Bad gateway</h1>"),
    "503 in JSON": ((503, '{"error": {"message": "loading the model"}}'), "status 503: loading the model"),
    "429": ((429, '{"detail": "slow down"}'), "status 429: slow down"),
    "drops the connection": (drop, "the connection broke off"),
    "breaks off in the body": (cut_short, "the connection broke off"),
    "speaks no HTTP": (no_http, "the connection broke off"),
    "never ends": (trickle, "no whole answer within 0.4 seconds"),
    "never ends its headers": (without_headers, "no whole answer within 0.4 seconds"),
    "sends too much": (flood, "an answer of more than 4,194,304 bytes"),
    "truncated JSON": ((200, completion("1. What is it?")[:-9]), "no JSON"),
    "HTML": ((200, "<!doctype html><title>Sign in</title>"), "no JSON: <!doctype html><title>Sign in</title>"),
    "an empty body": ((200, ""), "no JSON: nothing said"),
    "another schema": ((200, '{"text": "1. What?"}'), "no choices[0].message.content"),
    "no choices": ((200, '{"choices": []}'), "no choices[0].message.content"),
    "a list": ((200, "[1]"), "no choices[0].message.content"),
    "a number as content": ((200, completion(5)), "no choices[0].message.content"),
    "deep JSON": ((200, "[" * 100_000), "no JSON"),
    "bytes that are no text": ((200, b"\xff\xfe\x00"), "no JSON"),
}


@pytest.mark.parametrize("stumble", STUMBLES)
def test_a_stumble_is_forgiven_once_and_named_when_it_stays(stumble):
    behaviour, why = STUMBLES[stumble]
    timeout = 0.4 if behaviour in (trickle, without_headers) else 5.0
    with Server(lambda request, nth: well(request, nth) if nth > 0 else behaviour) as server:
        (answer,) = ask(server, [a_page(3)], timeout=timeout).values()
    assert answer.text == numbered(questions_about(3))
    assert len(server.requests) == 2

    with Server(lambda request, nth: behaviour if request["page"] == 3 else well(request, nth)) as server:
        answers = ask(server, [a_page(3), a_page(4)], timeout=timeout, retries=1)
    assert [request["page"] for request in server.requests].count(3) == 2
    failed, fine = (answers[page] for page in sorted(answers, key=lambda page: page.number))
    assert isinstance(failed, PageError)
    assert failed.place == "report.pdf#3"
    assert f"{server.url} gave no answer in 2 tries, at last: {why}" in failed.why
    assert fine.text == numbered(questions_about(4))


def test_a_server_that_hangs_is_left_when_the_time_is_over():
    with Server(lambda request, nth: well(request, nth) if nth else lambda handler: server.released.wait(30)) as server:
        started = time.monotonic()
        (answer,) = ask(server, [a_page(3)], timeout=0.3).values()
        assert time.monotonic() - started < 3
    assert answer.text == numbered(questions_about(3))


def pauses(server):
    times = [request["time"] for request in server.requests]
    return [after - before for before, after in itertools.pairwise(times)]


def test_pauses_double_and_are_not_all_alike():
    with Server(lambda request, nth: (500, "")) as server:
        ask(server, [a_page(1)], pause=0.1, retries=3)
    first, second, third = pauses(server)
    assert 0.05 <= first < 0.2
    assert 0.1 <= second < 0.4
    assert 0.2 <= third < 0.8


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [("0.4", 0.4, 1.5), ("1", 1.0, 2.5), ("date", 0.1, 2.5), ("soon", 0, 0.3), ("-5", 0, 0.3), ("1e999", 0, 0.3)],
)
def test_the_pause_a_server_asks_for_is_kept(said, least, most):
    def behave(request, nth):
        when = formatdate(time.time() + 1.5, usegmt=True) if said == "date" else said
        return well(request, nth) if nth else (429, "busy", {"Retry-After": when})

    with Server(behave) as server:
        ask(server, [a_page(1)])
    (pause,) = pauses(server)
    assert least <= pause < most


def test_a_pause_of_hours_ends_the_run_with_a_sentence():
    with Server(lambda request, nth: (429, "quota used up", {"Retry-After": "7200"})) as server:
        with pytest.raises(PagefacetsError, match=r"asks for a pause of 7,200 seconds \(status 429: quota used up\)"):
            ask(server, [a_page(1), a_page(2)])
        assert len(server.requests) <= 2


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_a_page_that_is_refused_is_not_sent_again(status):
    refusal = json.dumps({"error": {"message": "image too large"}})
    with Server(lambda request, nth: (status, refusal) if request["page"] == 3 else well(request, nth)) as server:
        answers = ask(server, [a_page(3), a_page(4)])
    assert sorted(server.pages) == [3, 4]
    (failed,) = (answer for answer in answers.values() if isinstance(answer, PageError))
    assert failed.why == f"{server.url} refuses this page (status {status}: image too large)"


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_a_wrong_address_key_or_model_ends_the_run_at_once(status):
    with Server(lambda request, nth: (status, "no such model", {"Location": "http://127.0.0.1:1/"})) as server:
        with pytest.raises(
            InputError, match=rf"refuses model 'vl' \(status {status}: no such model\): check the address"
        ):
            ask(server, [a_page(number) for number in range(20)], model="vl", concurrency=2)
        assert len(server.requests) <= 4


def test_a_server_that_is_not_there_ends_the_run_with_a_sentence():
    with Server(well) as server:
        url = server.url
    asker = Endpoint(url, pause=0.01, retries=2)
    with pytest.raises(PagefacetsError, match=r"cannot be reached in 3 tries \(.+\): check the address and run again"):
        list(asker.answers([a_page(1)], PROMPT))


def test_a_page_without_an_image_does_not_stop_the_others():
    broken = Page("bad.png", "bad.png", 0, None, "d", Unreadable("bad.png"))
    with Server(well) as server:
        answers = ask(server, [a_page(1), broken, a_page(2)])
    assert server.pages == [1, 2] or server.pages == [2, 1]
    assert str(answers[broken]) == "bad.png: the image is truncated: save it again"


def test_what_the_model_says_may_come_in_parts_be_refused_or_cut_off():
    said = {
        1: completion([{"type": "text", "text": "1. What"}, {"type": "text", "text": " is it?"}]),
        2: json.dumps({"choices": [{"message": {"content": None, "refusal": "I cannot do that."}}]}),
        3: completion("1. What is it?\n2. How", finish_reason="length"),
        4: completion(None),
    }
    with Server(lambda request, nth: (200, said[request["page"]])) as server:
        answers = {page.number: answer for page, answer in ask(server, [a_page(number) for number in said]).items()}
    assert answers == {
        1: ("1. What is it?", False),
        2: ("I cannot do that.", False),
        3: ("1. What is it?\n2. How", True),
        4: ("", False),
    }


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "pagefacets-endpoint"]


def test_an_iterator_dropped_half_way_ends_its_thread_whoever_drops_it():
    """The garbage collector may run in the thread that the requests run in, which cannot wait for itself."""
    with Server(well) as server:
        held = [endpoint(server, concurrency=1).answers([a_page(1), a_page(2)], PROMPT)]
        next(held[0])
        held[0].gi_frame.f_locals["loop"].call_soon_threadsafe(held.clear)
        (thread,) = threads()
        thread.join(10)
        assert not thread.is_alive()


def test_ctrl_c_ends_what_is_under_way_and_what_waits_for_its_next_try():
    def hang_or_fail(request, nth):
        return (500, "") if request["page"] == 1 else lambda handler: server.released.wait(30)

    def interrupt(*_):
        raise KeyboardInterrupt

    with Server(hang_or_fail) as server:
        answers = endpoint(server, timeout=30.0, pause=20.0).answers([a_page(1), a_page(2)], PROMPT)
        previous = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.6)
        started = time.monotonic()
        try:
            with pytest.raises(KeyboardInterrupt):
                list(answers)
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert time.monotonic() - started < 3
        assert sorted(server.pages) == [1, 2]
    assert threads() == []


def test_the_key_goes_to_the_server_and_nowhere_else(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("VL_KEY", f" {KEY}\n")
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}. Or {KEY}"}})
    shown = []
    with Server(lambda request, nth: (200 if nth > 1 else (500, 400)[nth], echo)) as server:
        asker = endpoint(server, key_variable="VL_KEY", retries=1)
        shown += [repr(asker), str(ask(server, [a_page(1)], key_variable="VL_KEY", retries=0))]
        shown += [str(ask(server, [a_page(1)], key_variable="VL_KEY", retries=0))]
    assert {request["headers"]["Authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    with Server(lambda request, nth: (401, echo)) as server, pytest.raises(InputError) as refused:
        ask(server, [a_page(1)], key_variable="VL_KEY")
    shown.append(str(refused.value))
    assert "Incorrect API key provided: ***." in shown[-1]
    assert sum("***" in text for text in shown) == 3
    assert caplog.records
    assert all("0123456789" not in text for text in [*shown, caplog.text])


@pytest.mark.parametrize(
    ("value", "why"), [(None, "is not set"), ("  ", "is not set"), ("sk\nx", "no key has"), ("schlüssel", "no key has")]
)
def test_a_key_that_cannot_be_one_is_named_by_its_variable(monkeypatch, value, why):
    if value is None:
        monkeypatch.delenv("VL_KEY", raising=False)
    else:
        monkeypatch.setenv("VL_KEY", value)
    with Server(well) as server, pytest.raises(InputError, match=why) as refused:
        ask(server, [a_page(1)], key_variable="VL_KEY")
    assert "VL_KEY" in str(refused.value)
    assert not (value or "").strip() or value not in str(refused.value)
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://host/v1", "localhost:8000/v1", "http://", "http://[::1", "http://host:port/v1", ""],
)
def test_only_http_addresses_are_asked(url):
    with pytest.raises(InputError, match="must be an http:// or https:// address"):
        Endpoint(url)


def test_a_secret_in_an_address_is_refused_or_never_shown():
    with pytest.raises(InputError, match=r"the endpoint https://host/v1 was given with a user or password") as refused:
        Endpoint("https://user:secret@host/v1")
    assert "secret" not in str(refused.value)
    with Server(lambda request, nth: (404, "no")) as server:
        with pytest.raises(InputError) as refused:
            list(Endpoint(f"{server.url}?api-version=1&key=secret").answers([a_page(1)], PROMPT))
        assert server.requests[0]["path"] == "/v1/chat/completions?api-version=1&key=secret"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        ({"timeout": 0.0}, "timeout must be a positive number of seconds, got 0"),
        ({"pause": float("inf")}, "pause must be a positive"),
        ({"longest": 10}, "longest must be at least 64, got 10"),
        ({"settings": {"stream": True}}, "the setting 'stream' is not free"),
    ],
)
def test_options_that_make_no_sense(options, why):
    with pytest.raises(InputError, match=why):
        Endpoint("http://localhost:8000/v1", **options)


def test_without_httpx_one_sentence_names_the_extra():
    script = """
import sys
sys.modules["httpx"] = None
from pagefacets.evidence.endpoint import Endpoint
try:
    next(Endpoint("http://localhost:9/v1").answers([], "ask"))
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'pagefacets[questions]'" in done.stdout
