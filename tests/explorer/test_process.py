"""`glassgpt explore` as a process: it prints its address, answers, and ends quietly."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from glassgpt.cli.listening import listen
from glassgpt.http.connection_limits import make_uvicorn_config
from glassgpt.http.middleware import SecurityMiddleware
from glassgpt.http.server import QuietServer
from tests.conftest import SHIPPED
from tests.serve.conftest import exchange


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "glassgpt", "explore", "--model", SHIPPED, "--no-browser", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = start("Où est le robot?", "--port", "0")
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    yield process, url
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_it_prints_an_address_that_holds_the_text(server: tuple[subprocess.Popen[str], str]) -> None:
    address, _, text = server[1].partition("#")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    assert text == "text=O%C3%B9%20est%20le%20robot%3F"
    with urllib.request.urlopen(address) as answer:
        assert b"main.js" in answer.read()


def test_raw_bytes_get_an_error_or_are_dropped(server: tuple[subprocess.Popen[str], str]) -> None:
    port = int(server[1].split(":")[2].split("/")[0])
    for sent in (
        b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET //etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /%2e%2e/%2e%2e/app.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"GET /" + b"a" * 100_000,
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            answer = exchange(connection, sent)
        assert b"root:" not in answer
        assert answer == b"" or re.match(rb"HTTP/1.1 4\d\d ", answer), (sent[:60], answer[:60])


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_hundreds_who_say_nothing_or_half_leave_room(
    server: tuple[subprocess.Popen[str], str], said: bytes
) -> None:
    address = server[1].partition("#")[0]
    port = int(address.split(":")[2].strip("/"))
    with ExitStack() as stack:
        for _ in range(300):
            made = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300))
            made.sendall(said)
        with urllib.request.urlopen(address, timeout=300) as answer:
            assert b"main.js" in answer.read()


def test_a_port_in_use_is_told_in_one_line(server: tuple[subprocess.Popen[str], str]) -> None:
    port = server[1].split(":")[2].split("/")[0]
    process = start("--port", port)
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == f"glassgpt: --port {port} is already in use. Use another, or omit --port.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another thing there")
def test_ctrl_c_ends_it_quietly(server: tuple[subprocess.Popen[str], str]) -> None:
    """The last test of this file: the server is gone after it."""
    process, _ = server
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another thing there")
def test_ctrl_c_while_requests_wait_ends_them_with_503(capfd: pytest.CaptureFixture[str]) -> None:
    """By itself uvicorn answers 500 and prints a traceback for each."""
    waiting: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        waiting.append(scope)
        if len(waiting) == 2:
            signal.raise_signal(signal.SIGINT)
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.Event().wait()

    config = make_uvicorn_config(SecurityMiddleware(app))
    config.timeout_graceful_shutdown = 0
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    answers: dict[str, bytes] = {}

    def ask(path: str) -> None:
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.sendall(request)
            answers[path] = connection.makefile("rb").read()

    clients = [threading.Thread(target=ask, args=(path,)) for path in ("/begun", "/not")]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is raised again at the end
    try:
        QuietServer(config, lambda: [client.start() for client in clients]).run_until_signal(listener)
    finally:
        signal.signal(signal.SIGINT, before)
    for client in clients:
        client.join(timeout=300)
    assert answers["/not"].startswith(b"HTTP/1.1 503 ")
    assert b"The server was stopped" in answers["/not"]
    assert answers["/begun"].startswith(b"HTTP/1.1 200 ")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "--port 70000 is not a valid port"),
        (["--host", "203.0.113.7"], "--host 203.0.113.7 is not an address of this machine"),
        (["--host", "no such host"], "is not an address of this machine"),
        (["--host", ""], "--host is empty; is a shell variable unset?"),
        (["--model", "nowhere/at/all"], "does not exist"),
        ([""], "the prompt is empty"),
    ],
)
def test_mistakes_are_told_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str, tmp_path: Path
) -> None:
    from glassgpt.cli import main

    assert main(["explore", "--model", SHIPPED, "--no-browser", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)])
def test_who_lets_the_network_in_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: str, warned: bool
) -> None:
    from glassgpt.cli import main
    from glassgpt.cli.commands import explore

    monkeypatch.setattr(explore, "serve", lambda app, listener, url, open_browser: listener.close())
    assert main(["explore", "--model", SHIPPED, "--no-browser", "--host", host, "--port", "0"]) == 0
    said = f"warning: with --host {host} anyone who can reach this machine over the network can use"
    assert (said in capsys.readouterr().err) == warned


def test_who_opens_it_to_the_network_gets_an_address_for_other_machines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassgpt.cli import listening, main
    from glassgpt.cli.commands import explore

    urls: list[str] = []
    monkeypatch.setattr(
        explore, "serve", lambda app, listener, url, open_browser: (urls.append(url), listener.close())
    )
    monkeypatch.setattr(listening, "network_address", lambda: "198.51.100.4")
    words = ["explore", "Hi", "--model", SHIPPED, "--no-browser", "--port", "0", "--host"]
    assert main([*words, "0.0.0.0"]) == 0
    assert urls[0].startswith("http://127.0.0.1:")  # for this machine
    other = urls[0].replace("127.0.0.1", "198.51.100.4")
    assert f"on other machines of the network, open {other}" in capsys.readouterr().err
    assert main([*words, "127.0.0.1"]) == 0
    assert "other machines" not in capsys.readouterr().err
    monkeypatch.setattr(listening, "network_address", lambda: None)  # not on a network
    assert main([*words, "0.0.0.0"]) == 0
    assert "other machines" not in capsys.readouterr().err


def test_this_machines_address_is_no_loopback_address() -> None:
    from glassgpt.cli.listening import network_address

    found = network_address()
    assert found is None or not found.startswith("127.")


def test_serve_on_all_addresses_names_the_one_of_the_network(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassgpt.cli import listening, main
    from glassgpt.serve import server

    monkeypatch.setattr(server, "run", lambda app, listener, drain_timeout, on_start: on_start())
    monkeypatch.setattr(listening, "network_address", lambda: "198.51.100.4")
    words = ["serve", "--model", SHIPPED, "--port", "0", "--host"]
    assert main([*words, "0.0.0.0"]) == 0
    said = capsys.readouterr()
    other = said.out.strip().replace("127.0.0.1", "198.51.100.4")
    assert f"on other machines of the network: {other}" in said.err
    assert main([*words, "127.0.0.1"]) == 0
    assert "other machines" not in capsys.readouterr().err
