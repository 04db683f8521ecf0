"""`glassgpt serve` as a process: signals, clients that vanish, and input that is not a request."""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHIPPED
from tests.serve.conftest import COMMON, PATIENCE, PROMPT, ServerProcess, exchange, wait_until

pytestmark = pytest.mark.slow


def connect(server: ServerProcess) -> socket.socket:
    port = int(server.root.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def raw_request(**fields: Any) -> bytes:
    body = json.dumps({"model": SHIPPED, "prompt": PROMPT, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    return (head + "Content-Type: application/json\r\nConnection: close\r\n\r\n").encode() + body


def post(server: ServerProcess, **fields: Any) -> Any:
    body = json.dumps({"model": SHIPPED, "prompt": PROMPT, **fields}).encode()
    request = urllib.request.Request(
        f"{server.url}/completions", body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_row(server: ServerProcess, stream: bool) -> None:
    connections = [connect(server) for _ in range(40)]  # many more than there are rows: some always wait
    for connection in connections:
        connection.sendall(raw_request(max_tokens=1000, stream=stream, ignore_eos=True))
    wait_until(lambda: server.metric("requests_running") == 8 and server.metric("requests_waiting") >= 4)
    for connection in connections:
        connection.close()
    wait_until(lambda: server.metric("requests_running") == 0 and server.metric("requests_waiting") == 0)
    before = server.metric("engine_steps_total")
    post(server, max_tokens=2)
    assert server.metric("engine_steps_total") - before < 20  # nothing else was running anymore


def test_clients_killed_at_random_moments_leave_nothing(server: ServerProcess) -> None:
    rng = random.Random(1)
    for _ in range(40):
        with connect(server) as connection:
            request = raw_request(max_tokens=60, stream=rng.random() < 0.5, ignore_eos=True, n=2)
            connection.sendall(request[: rng.choice([len(request), rng.randrange(len(request))])])
            connection.settimeout(rng.random() * 0.05 + 0.001)
            with suppress(TimeoutError):
                connection.recv(rng.randrange(1, 400))
    wait_until(lambda: server.metric("requests_running") == 0 and server.metric("requests_waiting") == 0)
    assert post(server, max_tokens=3)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    "sent",
    [
        b'{"prompt": NaN}',
        b'{"prompt": "A", "temperature": NaN}',
        b'{"prompt": "A", "temperature": 1e999}',
        b'{"prompt": "A", "max_tokens": 1' + b"0" * 5000 + b"}",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "A", "stop": "\\udfff"}',
        b'{"prompt": "\\u0000", "max_tokens": 1}',
        b'{"prompt": "A", "prompt": 3}',
        b"",
        b"null",
        b"\x00" * 100,
        b'{"prompt": "A"',
        b'{"prompt": "' + b"A" * 1_500_000 + b'"}',
    ],
)
def test_bodies_that_are_not_requests(server: ServerProcess, sent: bytes) -> None:
    request = urllib.request.Request(
        f"{server.url}/completions", sent, headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            status, content = answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        status, content = error.code, json.load(error)
    assert status == 200 or 400 <= status < 500
    assert "choices" in content or set(content["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_body_of_100_mb_is_refused_before_it_is_read(server: ServerProcess, connection: str) -> None:
    """And its client, which sends all of it first, reads why."""
    api = http.client.HTTPConnection(server.root.removeprefix("http://"), timeout=PATIENCE)
    body = b'{"prompt": "' + b"A" * 100_000_000
    api.request("POST", "/v1/completions", body, {"connection": connection})
    response = api.getresponse()
    assert response.status == 413
    assert "larger than 4,000,000 bytes" in json.load(response)["error"]["message"]
    if connection == "keep-alive":
        api.request("GET", "/health")  # what was left of the body is not taken for the next request
        assert api.getresponse().status == 200
    api.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n{",
        # Two requests in one, for a proxy and a server that read different headers.
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
        b"GET /v1/models\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_bytes_that_are_not_requests(server: ServerProcess, sent: bytes) -> None:
    with connect(server) as connection:
        answer = exchange(connection, sent)
    assert b"root:" not in answer
    status = re.match(rb"HTTP/1.1 (4\d\d) ", answer)
    assert status is not None, answer[:100]
    assert answer.count(b"HTTP/1.1 ") == 1  # what followed it was not taken for another request
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}


@pytest.fixture
def own() -> Iterator[ServerProcess]:
    started = ServerProcess(*COMMON, "--drain-timeout", str(PATIENCE))
    yield started
    started.stop()


def test_sigterm_finishes_what_was_admitted(own: ServerProcess) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(post(own, max_tokens=200, ignore_eos=True)))
        for _ in range(16)  # half of them wait
    ]
    for thread in threads:
        thread.start()
    # In this order none is counted twice; on a slow machine the first may have ended before the last comes.
    stages = ("requests_total", "requests_running", "requests_waiting")
    wait_until(lambda: sum(own.metric(name) for name in stages) >= 16)
    own.process.send_signal(signal.SIGTERM)
    wait_until(lambda: is_draining(own))
    for thread in threads:
        thread.join(PATIENCE)
    assert [answer["usage"]["completion_tokens"] for answer in found] == [200] * 16
    assert own.process.wait(PATIENCE) == 143
    assert own.process.stderr is not None
    assert "Traceback" not in own.process.stderr.read()


def test_requests_that_the_end_cuts_off_get_503() -> None:
    server = ServerProcess(*COMMON, "--drain-timeout", "0.1")
    found: list[int] = []

    def ask() -> None:
        try:
            post(server, max_tokens=900, n=8, ignore_eos=True)
        except urllib.error.HTTPError as error:
            found.append(error.code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.metric("requests_running") + server.metric("requests_waiting") >= 4)
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [503] * 4
    server.stop()


def is_draining(server: ServerProcess) -> bool:
    """New requests get 503, or, when all others were finished meanwhile, no connection."""
    try:
        post(server, max_tokens=1)
    except urllib.error.HTTPError as error:
        return error.code == 503
    except OSError:
        return True
    return False


def is_ready(server: ServerProcess) -> bool:
    try:
        with urllib.request.urlopen(f"{server.root}/ready", timeout=PATIENCE):
            return True
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return False
        raise


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_second_signal_ends_at_once(own: ServerProcess, number: int, code: int) -> None:
    with connect(own) as connection:
        connection.sendall(raw_request(max_tokens=1000, stream=True, ignore_eos=True, n=100))  # long work
        wait_until(lambda: own.metric("requests_running") > 0)
        own.process.send_signal(number)
        wait_until(lambda: not is_ready(own))
        own.process.send_signal(number)
        assert own.process.wait(PATIENCE) == code
        assert b"[DONE]" not in connection.makefile("rb").read()
    assert own.process.stderr is not None
    assert "Traceback" not in own.process.stderr.read()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [["serve"], ["explore", "--no-browser"]], ids=["serve", "explore"])
def test_a_terminal_that_takes_nothing_is_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "glassgpt", *command, "--port", "0", "--model", SHIPPED],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
    assert ended.returncode != 0
    assert "no space left" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_signals_to_the_explorer_print_no_traceback() -> None:
    command = [sys.executable, "-m", "glassgpt", "explore", "--no-browser", "--port", "0", "--model", SHIPPED]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=PATIENCE)[1]


def test_a_model_that_cannot_be_loaded_is_one_line() -> None:
    for words, message in (
        (["--model", "./no/such/model"], "does not exist"),
        (["--max-batch-size", "0"], "max_batch_size is 0"),
        (["--max-model-memory", "0.001", "--model", SHIPPED], "--max-model-memory"),
        (["--log", "everything"], "log 'everything'"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "glassgpt", "serve", "--port", "0", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ended.returncode == 2
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr
