"""Connection limits: how many connections a client may have, and how long it may keep us waiting.

By itself, uvicorn waits forever for the rest of a request, and with too many connections it rejects
everybody. Here each client (an address) has its own limit, a client that keeps us waiting is disconnected
after a timeout, and at the limit, the connection that has kept us waiting longest is closed for the new one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from dataclasses import dataclass

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassgpt.http.errors import ErrorFormat, error_response, field_error


@dataclass(frozen=True)
class ConnectionLimits:
    """The number of connections, and timeouts in seconds."""

    max_connections: int = 200  # of all clients: some systems allow a process 256 files
    max_per_client: int = 64  # a browser opens six
    header_timeout: float = 10  # for the request line and the headers
    body_timeout: float = 30  # for the body
    write_timeout: float = 30  # while the client does not read our response
    keep_alive_timeout: int = 5  # between two requests


def make_uvicorn_config(
    app: ASGIApp, limits: ConnectionLimits | None = None, error_format: ErrorFormat = field_error
) -> uvicorn.Config:
    """How uvicorn runs our apps: within limits, without headers of its own, and with a quick shutdown."""
    limits = ConnectionLimits() if limits is None else limits
    ours = {"limits": limits, "error_format": staticmethod(error_format)}
    return uvicorn.Config(
        app,
        http=type("LimitedProtocol", (LimitedProtocol,), ours),
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=limits.keep_alive_timeout,
    )


class LimitedProtocol(H11Protocol):
    """uvicorn's connection with a phase and a timer. In every phase but "busy" we wait for the client."""

    limits = ConnectionLimits()
    error_format = staticmethod(field_error)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.client_reads = True
        self.phase = ""
        self.since = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.client_key = client_key(transport.get_extra_info("peername"))
        open_now = [other for other in self.connections if isinstance(other, LimitedProtocol)]
        same_client = [other for other in open_now if other.client_key == self.client_key]
        for others, limit in (
            (same_client, self.limits.max_per_client),
            (open_now, self.limits.max_connections),
        ):
            if len(others) >= limit and not close_longest_waiting(others):
                message = "Too many connections are open. Try again in a moment."
                transport.write(raw_error(503, "Service Unavailable", message, self.error_format))
                transport.close()
                break
        super().connection_made(transport)
        self.update_phase()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with an error of the same shape as all others."""
        self.transport.write(raw_error(400, "Bad Request", msg, self.error_format))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.update_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.update_phase()

    def eof_received(self) -> None:
        super().eof_received()
        self.loop.call_soon(self.update_phase)  # the transport closes itself after this

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.update_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.client_reads = False
        self.update_phase()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.client_reads = True
        self.update_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.cancel_timer()

    def update_phase(self) -> None:
        """Start the timer of a new phase. Bytes that trickle in do not extend the phase they belong to."""
        phase = self.current_phase()
        if phase == self.phase:
            return
        self.cancel_timer()
        # Not loop.time(): uvloop rounds it to milliseconds, in which several connections arrive.
        self.phase, self.since = phase, time.monotonic()
        limits = self.limits
        # Between two requests uvicorn has its own timer.
        timeouts = {
            "headers": limits.header_timeout,
            "body": limits.body_timeout,
            "write": limits.write_timeout,
            "closing": limits.write_timeout,
        }
        if phase in timeouts:
            self.timer = self.loop.call_later(timeouts[phase], self.transport.abort)

    def current_phase(self) -> str:
        if self.transport.is_closing():
            return "closing"  # until the client has read everything
        if not self.client_reads:
            return "write"
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if self.conn.their_state is h11.IDLE:
            started = self.cycle is None or self.conn.trailing_data[0] != b""
            return "headers" if started else "idle"
        return "busy"

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def close_longest_waiting(others: list[LimitedProtocol]) -> bool:
    """Close the connection that has kept us waiting longest; False if all of them are busy."""
    waiting = [other for other in others if other.phase != "busy"]
    if not waiting:
        return False
    longest = min(waiting, key=lambda other: other.since)
    longest.transport.abort()
    longest.connections.discard(longest)  # now: others may come before connection_lost is called
    return True


def client_key(peer: tuple[str, int] | None) -> str:
    """The client of a connection: its address, or its /64 network, which in IPv6 is one client's."""
    if peer is None:
        return ""
    address = ipaddress.ip_address(peer[0])
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return str(getattr(address, "ipv4_mapped", address))
    return str(ipaddress.IPv6Network((address.packed, 64), strict=False))


def raw_error(status: int, phrase: str, message: str, format: ErrorFormat) -> bytes:
    """An error response for a connection that has no request."""
    response = error_response(status, message, format=format)
    head = f"HTTP/1.1 {status} {phrase}\r\nconnection: close\r\n".encode()
    if status == 503:
        head += b"retry-after: 1\r\n"
    for name, value in response.raw_headers:
        head += name + b": " + value + b"\r\n"
    return head + b"\r\n" + bytes(response.body)
