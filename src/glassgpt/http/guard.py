"""The door: what every request must show before the app sees it, and what every answer carries.

A server on 127.0.0.1 can be reached by every page in every browser of this machine. Two checks keep them out:

- Host. A page whose own name is made to point to 127.0.0.1 (DNS rebinding) still sends that name.
- Origin, and Sec-Fetch-Site where a browser sends it. A page of another site that posts to us says so.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassgpt.http.errors import error_response

API = "/api/"

# The page loads its own files and nothing else, runs no script and no style that stands in HTML, makes no
# HTML from strings (trusted types without a policy), sends no form, cannot be framed. Its pictures are blobs.
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


class Guard:
    """An ASGI middleware. `host` is where the server is bound, `body_limit` the most bytes of a request."""

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", body_limit: int = 1_000_000) -> None:
        self.app = app
        self.names = allowed_names(host)
        self.local_only = is_loopback(host)
        self.body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with_headers = decorated(scope, send)
        refusal = self.refusal(scope)
        if refusal is not None:
            await error_response(*refusal)(scope, receive, with_headers)
            return
        await self.app(scope, CountedBody(receive, self.body_limit), with_headers)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the sentence for a request that must not pass."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if not self.is_ours(host):
            return 421, f"The Host {host[:100]!r} is not this server's. Open the address that it printed."
        origin = headers.get("origin")
        if origin is not None and not same_origin(origin, host):
            return (
                403,
                f"Requests from the origin {origin[:100]!r} are not answered: only this server's own page.",
            )
        if scope["path"].startswith(API) and headers.get("sec-fetch-site", "none") not in (
            "same-origin",
            "none",
        ):
            return 403, "Requests from another site's page are not answered."
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, "Content-Length is not a number."
        if int(length[:20]) > self.body_limit:
            return 413, too_large(self.body_limit)
        return None

    def is_ours(self, host: str) -> bool:
        """A name of this machine, with any port (a tunnel may have another than we have).

        Bound to more than the loopback, any literal address will do: rebinding needs a name.
        """
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if name is None or "@" in host or "/" in host:
            return False
        return name in self.names or (not self.local_only and is_address(name))


class CountedBody:
    """`receive`, but a body without a Content-Length cannot grow without end either."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self.receive = receive
        self.limit = self.left = limit

    async def __call__(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.request":
            self.left -= len(message.get("body", b""))
            if self.left < 0:
                raise HTTPException(413, too_large(self.limit))
        return message


def too_large(limit: int) -> str:
    return f"The body is larger than {limit:,} bytes. Send a shorter text."


def decorated(scope: Scope, send: Send) -> Send:
    """`send`, with our headers on every answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store" if scope["path"].startswith(API) else "no-cache")
        await send(message)

    return sending


def allowed_names(host: str) -> frozenset[str]:
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
    """Whether a page of this origin came from the host that the request names."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
