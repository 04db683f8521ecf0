"""Clients that say half a sentence, nothing, or too much at once: they lose their connections, others do not.

What should never happen in a test has a limit of ten minutes, what should happen one that is soon over: no
test looks at a clock.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from glassgpt.http.connection_limits import ConnectionLimits, client_key
from tests.explorer.browser import served

NEVER, SOON, PATIENCE = 600, 0.1, 300  # seconds
PATIENT = {
    "header_timeout": NEVER,
    "body_timeout": NEVER,
    "write_timeout": NEVER,
    "keep_alive_timeout": NEVER,
}
HEAD = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
PAGE = HEAD % (b"/", 0)


class Server:
    """Answers "here" at /, waits for `go` at /held, and writes without end at /endless."""

    def __init__(self, **limits: Any) -> None:
        self.limits = ConnectionLimits(**(PATIENT | limits))
        self.go, self.left, self.begun = threading.Event(), threading.Event(), threading.Semaphore(0)
        variants = {"/": self.here, "/held": self.held, "/endless": self.endless}
        routes = [Route(path, variant, methods=["POST"]) for path, variant in variants.items()]
        self.stack = ExitStack()
        url = self.stack.enter_context(served(Starlette(routes=routes), self.limits))
        self.port = int(url.split(":")[2].strip("/"))

    async def here(self, request: Request) -> Response:
        await request.body()
        return PlainTextResponse("here")

    async def held(self, request: Request) -> Response:
        self.begun.release()
        await asyncio.to_thread(self.go.wait, PATIENCE)
        return PlainTextResponse("here")

    async def endless(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while not self.go.is_set():
                    yield bytes(1 << 16)
                    await asyncio.sleep(0)
            finally:
                self.left.set()

        return StreamingResponse(parts())

    def connect(self, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), PATIENCE, (source, 0))
        self.stack.enter_context(made)
        made.sendall(sent)
        return made

    def status(self, source: str = "127.0.0.1") -> bytes:
        """What a new connection is answered."""
        return answer(self.connect(PAGE, source))

    def hold(self, count: int) -> list[socket.socket]:
        """Connections that are being answered, and go on so."""
        made = [self.connect(HEAD % (b"/held", 0)) for _ in range(count)]
        for _ in made:
            assert self.begun.acquire(timeout=PATIENCE)
        return made


def answer(connection: socket.socket) -> bytes:
    """The status of an answer; nothing if the connection is closed without one."""
    try:
        return connection.recv(12)[9:12]
    except ConnectionError:
        return b""


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def started(**limits: Any) -> Server:
        servers.append(Server(**limits))
        return servers[-1]

    yield started
    for server in servers:
        server.go.set()
        server.stack.close()


def trickle(connection: socket.socket, byte: bytes) -> None:
    """Byte by byte, until the server has closed the connection."""
    connection.settimeout(SOON / 10)
    for _ in range(int(PATIENCE / SOON * 10)):
        try:
            connection.sendall(byte)
            assert connection.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            pass
        return
    pytest.fail("it was never closed")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0", b"GET / HTTP/1.1\r\n"])
def test_half_a_head_is_not_waited_for(start: Callable[..., Server], sent: bytes) -> None:
    assert answer(start(header_timeout=SOON).connect(sent)) == b""


def test_half_a_body_is_not_waited_for(start: Callable[..., Server]) -> None:
    assert answer(start(body_timeout=SOON).connect(HEAD % (b"/", 9) + b"half")) == b""


def test_bytes_that_trickle_do_not_prolong_a_request(start: Callable[..., Server]) -> None:
    trickle(start(header_timeout=SOON).connect(b"GET /"), b"a")
    trickle(start(body_timeout=SOON).connect(HEAD % (b"/", 100_000)), b"a")


def test_bytes_that_trickle_do_not_prolong_the_second_request(start: Callable[..., Server]) -> None:
    server, received = start(header_timeout=SOON), b""
    while not received:  # where this process stood still before it sent the head, the limit has counted
        with suppress(ConnectionError):
            connection = server.connect(PAGE)
            received = connection.recv(1000)
    assert received.startswith(b"HTTP/1.1 200 OK")
    while not received.endswith(b"here"):  # the body comes with the head, or after it
        received = connection.recv(1000)
        assert received
    trickle(connection, b"G")


def test_a_connection_without_requests_is_closed(start: Callable[..., Server]) -> None:
    connection = start(keep_alive_timeout=SOON).connect(PAGE)
    assert connection.makefile("rb").read().endswith(b"here")


def test_nobody_is_written_to_who_does_not_read(start: Callable[..., Server]) -> None:
    server = start(write_timeout=SOON)
    server.connect(HEAD % (b"/endless", 0))
    assert server.left.wait(PATIENCE)


def test_an_answer_that_takes_long_is_waited_for(start: Callable[..., Server]) -> None:
    """No limit counts while it is us who work: another connection is closed meanwhile, and this one not."""
    server = start(header_timeout=SOON, body_timeout=SOON, write_timeout=SOON, keep_alive_timeout=SOON)
    (held,) = server.hold(1)
    assert answer(server.connect()) == b""
    server.go.set()
    assert answer(held) == b"200"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", HEAD % (b"/", 9) + b"half"])
def test_who_lets_us_wait_makes_room(start: Callable[..., Server], sent: bytes) -> None:
    server = start(max_per_client=4)
    waiting = [server.connect(sent) for _ in range(40)]
    assert server.status() == b"200"
    assert answer(waiting[0]) == b""  # the oldest first
    (last,) = waiting[-1:]
    last.setblocking(False)
    with pytest.raises(BlockingIOError):
        last.recv(1)


def test_idle_connections_make_room(start: Callable[..., Server]) -> None:
    server = start(max_per_client=4)
    for _ in range(12):
        assert answer(server.connect(PAGE)) == b"200"


def test_a_client_with_all_its_connections_at_work_is_refused_and_another_is_not(
    start: Callable[..., Server],
) -> None:
    server = start(max_per_client=3)
    held = server.hold(3)
    refused = server.connect().makefile("rb").read()
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b'{"error":{"message":"Too many connections' in refused
    try:
        assert server.status("127.0.0.2") == b"200"
    except OSError:
        pytest.skip("this system has no 127.0.0.2")
    server.go.set()
    assert [answer(connection) for connection in held] == [b"200"] * 3
    assert server.status() == b"200"


def test_all_clients_together_have_a_limit_too(start: Callable[..., Server]) -> None:
    server = start(max_connections=3)
    server.hold(2)
    waiting = server.connect(b"GET /")
    assert server.status() == b"200"
    assert answer(waiting) == b""
    server.hold(1)
    assert server.status() == b"503"


def test_whose_a_connection_is() -> None:
    assert client_key(("192.168.1.7", 1)) != client_key(("192.168.1.8", 1))
    assert client_key(("::ffff:192.168.1.7", 1)) == client_key(("192.168.1.7", 2))
    assert client_key(("2001:db8:1:2::1", 1)) == client_key(("2001:db8:1:2:ffff::", 1))
    assert client_key(("2001:db8:1:2::1", 1)) != client_key(("2001:db8:1:3::1", 1))
    assert client_key(("fe80::1%eth0", 1)) == client_key(("fe80::2%eth0", 1))
    assert client_key(None) == ""
