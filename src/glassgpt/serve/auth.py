"""The API key: `Authorization: Bearer KEY`, or in a browser any user name with the key as the password.

Several keys, separated by commas, are several clients: none learns what another sent from the prefix cache.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from glassgpt.http.errors import error_response, openai_error

OPEN_PATHS = ("/health", "/ready")  # a load balancer and a readiness probe have no key
KEY = "glassgpt.key"  # the scope's entry for the client's key


class ApiKeyMiddleware:
    """ASGI middleware. The comparison takes as long for a wrong key as for a right one."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in split_keys(api_key)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        key = self._find_key(Headers(scope=scope))
        if key is not None:
            scope[KEY] = key
            await self.app(scope, receive, send)
            return
        message = "The API key is missing or wrong. Send it as: Authorization: Bearer KEY"
        headers = {"www-authenticate": 'Bearer realm="glassgpt", Basic realm="glassgpt"'}
        response = error_response(401, message, None, headers, code="invalid_api_key", format=openai_error)
        await response(scope, receive, send)

    def _find_key(self, headers: Headers) -> str | None:
        """The number of a request's key, as text; None for a wrong key."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        key = password(credentials) if scheme.lower() == "basic" else credentials.strip()
        # Equal digests mean equal keys, and have one length whatever was sent. All are compared.
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        equal = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(equal) or scheme.lower() not in ("bearer", "basic"):
            return None
        return f"key-{equal.index(True)}"


def split_keys(api_key: str) -> list[str]:
    return [key.strip() for key in api_key.split(",") if key.strip()]


def password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode("utf-8", "replace").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
