"""The server as a process: slow and rude clients, signals, ports, and what it prints."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from pagefacets.serve.limits import Limits
from tests.processes import command
from tests.serve.library import address, server

pytestmark = pytest.mark.slow


def ask(port, request, *, timeout=20.0):
    """The raw answer to a raw request."""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(request)
        return everything(connection)


def everything(connection):
    got = bytearray()
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            got += chunk
    return bytes(got)


def get(port, path="/search?q=battery+ferry", host="localhost"):
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


def body(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def test_it_answers_and_says_where(running):
    assert running.url == f"http://127.0.0.1:{running.port}/"
    assert running.pages == 6
    assert body(get(running.port))["hits"][0]["id"] == "ferries.pdf#0"
    assert b"421" in get(running.port, host="evil.example").split(b"\r\n")[0]
    assert b"server:" not in get(running.port).lower()


def test_only_loopback_listens(running):
    """No address of this machine but those of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no other address than 127.0.0.1")
        own = probe.getsockname()[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((own, running.port), 5)


@pytest.fixture(scope="module")
def impatient(index):
    """A server that waits two seconds for anything."""
    with server(index, limits={"head_seconds": 2.0, "body_seconds": 2.0, "stall_seconds": 2.0}) as one:
        yield one


def test_slow_clients_block_nobody(impatient):
    """Sixty connections that send a head byte by byte, a body that never comes, answers that nobody reads."""
    port, stop = impatient.port, threading.Event()
    heads = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    waiting = socket.create_connection(("127.0.0.1", port))
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    waiting.sendall(head + b'{"q"')
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", port))
    deaf.sendall(b"GET /static/app.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1500)

    def drip():
        for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"z" * 1000:
            for one in heads:
                with contextlib.suppress(OSError):
                    one.send(bytes([byte]))
            if stop.wait(0.2):
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        started, asked = time.monotonic(), 0
        while time.monotonic() < started + 5:
            before = time.monotonic()
            assert body(get(port))["hits"]
            assert time.monotonic() - before < 2, "others are answered at once"
            asked += 1
        assert asked > 20
        for one in heads:
            one.settimeout(2)
            assert everything(one) == b"", "no answer to a head that is never whole, and an end to it"
        waiting.settimeout(2)
        late = everything(waiting)
        assert late.startswith(b"HTTP/1.1 408")
        assert "after 2 seconds" in body(late)["error"]
        deaf.settimeout(2)
        script = len(get(port, "/static/app.js"))
        assert len(everything(deaf)) < 1400 * script, "whoever does not read is hung up on"
    finally:
        stop.set()
        dripping.join()
        for one in (*heads, waiting, deaf):
            one.close()


def test_a_full_house_lets_newcomers_in(running):
    """More idle connections than are allowed: the newest are answered all the same."""
    port, limits = running.port, Limits()
    idle = []
    try:
        idle.extend(socket.create_connection(("127.0.0.1", port), 5) for _ in range(limits.connections + 40))
        assert body(get(port))["hits"]
    finally:
        for one in idle:
            one.close()


def test_a_huge_body_is_refused_and_the_answer_arrives(running):
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    answer = ask(running.port, head + b"Content-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert "16,384 bytes" in body(answer)["error"]
    with socket.create_connection(("127.0.0.1", running.port), 20) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        while sent < 200_000_000:
            connection.sendall(b"10000\r\n" + b"y" * 65536 + b"\r\n")
            sent += 65536
    assert sent < 50_000_000, "whoever sends on and on is hung up on"
    assert body(get(running.port))["hits"]


@pytest.mark.parametrize(
    "request_",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    ],
    ids=range(8),
)
def test_what_is_no_request_is_refused(running, request_):
    status = ask(running.port, request_).split(b" ")[1:2]
    assert status in ([b"400"], [b"421"], [b"431"]), status
    assert body(get(running.port))["hits"]


def test_paths_cannot_leave_the_index(running):
    """Raw, as no client library would send them."""
    for path in (
        "/pages/../../../etc/passwd",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "//etc/passwd",
        "/../",
    ):
        answer = get(running.port, path)
        assert answer.split(b" ")[1] == b"404", path
        assert b"root:" not in answer
    assert get(running.port, f"{address('ferries.pdf#0')}/image").split(b" ")[1] == b"200"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_opens_a_browser_and_ends_at_once_and_quietly(index, tmp_path, number, status):
    """Ctrl-C and SIGTERM, with a client that keeps its connection and one that is in the middle of a request."""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    with server(index, "--open", BROWSER=str(browser)) as one, contextlib.ExitStack() as stack:
        idle, half = (stack.enter_context(socket.create_connection(("127.0.0.1", one.port))) for _ in range(2))
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(100)
        half.sendall(b"GET /hea")
        deadline = time.monotonic() + 10
        while not opened.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert opened.read_text().strip() == one.url
        started = time.monotonic()
        assert one.stop(number) == status
        assert time.monotonic() - started < 10
        errors = one.process.stderr.read()
        assert "Traceback" not in errors
        assert len(errors.splitlines()) <= 1
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", one.port), 5)


def test_what_cannot_be_served_is_one_sentence_and_status_2(index, running, tmp_path):
    (tmp_path / "here").mkdir()
    for arguments, sentence in (
        ((index, "--port", running.port), f"port {running.port} of 127.0.0.1 is in use"),
        ((index, "--port", "70000"), "port must lie between 0 and 65535"),
        ((index, "--host", "no.such.host.invalid"), "there is no address 'no.such.host.invalid' here"),
        ((index, "--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        ((tmp_path / "nothing.pf",), "does not exist"),
        ((index.parent,), "holds no whole index"),
    ):
        done = command(tmp_path / "here", "serve", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert sentence in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_without_the_extra_one_sentence_names_it(index):
    hidden = "import sys; sys.modules['uvicorn'] = None; sys.argv = ['pagefacets', 'serve', sys.argv[1]]"
    code = f"{hidden}; from pagefacets.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, index], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pip install 'pagefacets[serve]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
