"""Connections: how many a client may hold, and how long it may keep us waiting.

uvicorn alone waits for ever for the rest of a request, and where there are too many connections it refuses
everybody. Here each client (an address) has its own share, whoever lets us wait loses the connection in time,
and where there is no room left, the connection that has let us wait longest makes room for the new one.
"""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassgpt.http.errors import error_response


@dataclass(frozen=True)
class Limits:
    """How many connections there may be, and for how many seconds each may keep us waiting."""

    connections: int = 200  # of all clients: some systems allow a process 256 files
    per_client: int = 64  # a browser opens six
    head: float = 10  # until the request line and the headers have come
    body: float = 30  # until the body has come
    unread: float = 30  # while the client does not read our answer
    idle: int = 5  # between two requests


def config(app: ASGIApp, limits: Limits | None = None) -> uvicorn.Config:
    """How uvicorn runs an app of ours: within limits, saying nothing of itself, and quickly ended."""
    limits = Limits() if limits is None else limits
    return uvicorn.Config(
        app,
        http=type("LimitedConnection", (Connection,), {"limits": limits}),
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=limits.idle,
    )


class Connection(H11Protocol):
    """uvicorn's connection, which knows in which phase it is, and since when.

    In every phase but "busy" it is the client that lets us wait.
    """

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.client_reads = True
        self.phase = ""
        self.since = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.owner = owner(transport.get_extra_info("peername"))
        open_now = [other for other in self.connections if isinstance(other, Connection)]
        theirs = [other for other in open_now if other.owner == self.owner]
        for others, most in ((theirs, self.limits.per_client), (open_now, self.limits.connections)):
            if len(others) >= most and not make_room(others):
                transport.write(refusal())
                transport.close()
                break
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.watch()

    def eof_received(self) -> None:
        super().eof_received()
        self.loop.call_soon(self.watch)  # the transport closes itself after this

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.client_reads = False
        self.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.client_reads = True
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.stop_timer()

    def watch(self) -> None:
        """Begin a new phase, if this is one. Bytes that trickle in do not prolong the one they belong to."""
        phase = self.phase_now()
        if phase == self.phase:
            return
        self.stop_timer()
        self.phase, self.since = phase, self.loop.time()
        limits = self.limits
        # Between two requests uvicorn has a timer of its own.
        longest = {
            "head": limits.head,
            "body": limits.body,
            "unread": limits.unread,
            "closing": limits.unread,
        }
        if phase in longest:
            self.timer = self.loop.call_later(longest[phase], self.transport.abort)

    def phase_now(self) -> str:
        if self.transport.is_closing():
            return "closing"  # which waits until all that was written has been read
        if not self.client_reads:
            return "unread"
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if self.conn.their_state is h11.IDLE:
            begun = self.cycle is None or self.conn.trailing_data[0] != b""
            return "head" if begun else "idle"
        return "busy"

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def make_room(others: list[Connection]) -> bool:
    """Drop the connection that has let us wait longest; False: all of them are being answered."""
    waiting = [other for other in others if other.phase != "busy"]
    if not waiting:
        return False
    longest = min(waiting, key=lambda other: other.since)
    longest.transport.abort()
    longest.connections.discard(longest)  # at once: others may come before the transport says that it is lost
    return True


def owner(peer: tuple[str, int] | None) -> str:
    """Whose connection this is: an address, or of IPv6 the network of which a client has all addresses."""
    if peer is None:
        return ""
    address = ipaddress.ip_address(peer[0])
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return str(getattr(address, "ipv4_mapped", address))
    return str(ipaddress.IPv6Network((address.packed, 64), strict=False))


def refusal() -> bytes:
    answer = error_response(503, "Too many connections are open. Try again in a moment.")
    head = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    for name, value in answer.raw_headers:
        head += name + b": " + value + b"\r\n"
    return head + b"\r\n" + bytes(answer.body)
