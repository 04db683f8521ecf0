"""The API key: `Authorization: Bearer KEY`, or in a browser any user name with the key as the password."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from glassgpt.http.errors import error_response, openai_error

OPEN_PATHS = ("/health",)  # a load balancer has no key


class ApiKeyMiddleware:
    """ASGI middleware. The comparison takes as long for a wrong key as for the right one."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self._digest = hashlib.sha256(api_key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allows(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        message = "The API key is missing or wrong. Send it as: Authorization: Bearer KEY"
        headers = {"www-authenticate": 'Bearer realm="glassgpt", Basic realm="glassgpt"'}
        response = error_response(401, message, None, headers, code="invalid_api_key", format=openai_error)
        await response(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = password(given) if scheme.lower() == "basic" else given.strip()
        # Equal digests mean equal keys, and have one length whatever was sent.
        correct = hmac.compare_digest(hashlib.sha256(key.encode("utf-8", "replace")).digest(), self._digest)
        return correct and scheme.lower() in ("bearer", "basic")


def password(given: str) -> str:
    try:
        return base64.b64decode(given, validate=True).decode("utf-8", "replace").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
