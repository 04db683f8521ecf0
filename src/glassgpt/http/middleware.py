"""The middleware of every server: Host and Origin checks, a limit on bodies, and security headers.

A server on 127.0.0.1 can be reached by every page in every browser of this machine. Two checks keep them out:

- Host. A page whose domain was made to resolve to 127.0.0.1 (DNS rebinding) still sends that domain.
- Origin, and Sec-Fetch-Site where the browser sends it. A page of another site that posts here sends its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassgpt.http.errors import ErrorFormat, error_response, field_error

# Browsers send twenty headers. The parser has a limit of its own, but only for headers that arrive in parts.
MAX_HEADERS, MAX_HEADER_BYTES = 100, 16_384
MAX_DISCARDED_BYTES = 256_000_000  # of a body that is too large
API = "/api/"  # in a path, below whatever the app is mounted at

# The page loads its own files only, has no inline scripts or styles, makes no HTML from strings (trusted
# types without a policy), submits no forms and cannot be framed. Its images are blobs.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class SecurityMiddleware:
    """ASGI middleware. `host` is the address the server is bound to.

    `hosts` are further names that clients may use, and `origins` those of pages that may send requests. With
    `any_host`, a server that is bound to more than the loopback interface accepts any name: it is behind a
    proxy, or in a cluster, under names that it does not know.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        max_body_bytes: int = 1_000_000,
        *,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        any_host: bool = False,
        wrong_host_status: int = 421,
        error_format: ErrorFormat = field_error,
    ) -> None:
        self.app = app
        self.names = allowed_hosts(host) | {name.lower() for name in hosts}
        self.local_only = is_loopback(host)
        self.max_body_bytes = max_body_bytes
        self.origins = frozenset(origin.lower() for origin in origins)
        self.any_host = any_host and not self.local_only
        self.wrong_host_status = wrong_host_status
        self.error_format = error_format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with_headers = add_headers(scope, send)
        error = self.check(scope)
        if error is not None:
            response = error_response(*error, format=self.error_format)
            if error[0] == 400:  # where its body ends is not certain
                response.headers["connection"] = "close"
            if error[0] == 413:
                await respond_before_body(response, receive, with_headers)
            else:
                await response(scope, receive, with_headers)
            return
        started = False

        async def send_and_remember(message: Message) -> None:
            nonlocal started
            started = True
            await with_headers(message)

        try:
            await self.app(scope, LimitedBody(receive, self.max_body_bytes), send_and_remember)
        except asyncio.CancelledError:  # the server ends before the request is finished
            if started:
                raise
            error = 503, "The server was stopped before it could respond."
            await error_response(*error, format=self.error_format)(scope, receive, with_headers)

    def check(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the message for a request that is rejected."""
        headers = Headers(scope=scope)
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MAX_HEADER_BYTES or len(scope["headers"]) > MAX_HEADERS:
            return 431, f"The headers are more than {MAX_HEADERS}, or {MAX_HEADER_BYTES:,} bytes."
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if not (self.any_host or self.is_allowed_host(host)):
            message = f"The Host {host[:100]!r} is not this server's. Open the URL that it printed."
            return self.wrong_host_status, message
        origin = headers.get("origin")
        if origin is not None and not (origin.lower() in self.origins or same_origin(origin, host)):
            return (
                403,
                f"Requests from the origin {origin[:100]!r} are not allowed: only this server's own page.",
            )
        if API in scope["path"] and headers.get("sec-fetch-site", "none") not in (
            "same-origin",
            "none",
        ):
            return 403, "Requests from another site's page are not allowed."
        if "transfer-encoding" in headers and "content-length" in headers:
            # Which of the two counts? Where a proxy and a server disagree, one request becomes two.
            return 400, "A request has either Content-Length or Transfer-Encoding, not both."
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, "Content-Length is not a number."
        if int(length[:20]) > self.max_body_bytes:
            return 413, too_large_message(self.max_body_bytes)
        return None

    def is_allowed_host(self, host: str) -> bool:
        """A name of this machine, with any port (that of a tunnel may differ from ours).

        Bound to more than the loopback interface, any literal address is allowed: rebinding needs a name.
        """
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if name is None or "@" in host or "/" in host:
            return False
        return name in self.names or (not self.local_only and is_address(name))


class LimitedBody:
    """`receive` with the same limit for a body without a Content-Length."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self.receive = receive
        self.limit = self.left = limit

    async def __call__(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.request":
            self.left -= len(message.get("body", b""))
            if self.left < 0:
                raise HTTPException(413, too_large_message(self.limit))
        return message


async def respond_before_body(response: Response, receive: Receive, send: Send) -> None:
    """Respond at once, and discard the body before the connection is closed.

    A client that is still sending when it is closed gets an error of its own, and never reads ours.
    """
    await send(
        {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    )
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    left, more = MAX_DISCARDED_BYTES, True
    while more and left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def too_large_message(limit: int) -> str:
    return f"The body is larger than {limit:,} bytes. Send a shorter text."


def add_headers(scope: Scope, send: Send) -> Send:
    """`send` with the security headers on every response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store" if API in scope["path"] else "no-cache")
        await send(message)

    return send_with_headers


def allowed_hosts(host: str) -> frozenset[str]:
    names = {"localhost", "127.0.0.1", "::1", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin came from the host of the request."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
