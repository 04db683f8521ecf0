"""Several requests in one: what the views of the page need after one movement of the cursor."""

from __future__ import annotations

import re

import anyio
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from glassgpt.explorer.dependencies import API
from glassgpt.explorer.schemas import BatchRequest

router = APIRouter()

# Not these: one streams, the others are made of such requests themselves.
ALONE = ("/generate", "/export", "/batch")
LATEST = "/trace/latest/"
MADE = re.compile(rb'\{"id":"(\w+)","model":')  # how a trace begins


@router.post("/batch")
async def batch(body: BatchRequest, request: Request) -> Response:
    """The responses in the order of the requests, each with its status: one that fails leaves the others.

    `/trace/latest/...` is about the trace that an earlier request of the batch has made: when a token is
    appended, the id of its trace is not known yet.
    """
    parts, latest = [], b""
    for key in body.requests:
        if await request.is_disconnected():
            break
        status, content = await call_api(request.app, key.replace(LATEST, f"/trace/{latest.decode()}/", 1))
        trace_id = MADE.match(content)
        latest = trace_id[1] if trace_id else latest
        parts.append(b'{"status":%d,"body":%b}' % (status, content))
    return Response(b"[" + b",".join(parts) + b"]", media_type="application/json")


async def call_api(app: ASGIApp, key: str) -> tuple[int, bytes]:
    """The status and the JSON of the response to a request of the page: "/path?query", or "/path {body}"."""
    url, space, body = key.partition(" ")
    path, _, query = url.partition("?")
    if path in ALONE:
        return 404, b"null"
    scope = {
        "type": "http",
        "method": "POST" if space else "GET",
        "path": API + path,
        "raw_path": (API + path).encode("utf-8", "replace"),
        "query_string": query.encode("utf-8", "replace"),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
    }
    status, chunks, sent = 0, [], False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await anyio.sleep_forever()
        sent = True
        return {"type": "http.request", "body": body.encode("utf-8", "replace"), "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            chunks.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:
        if status != 500:  # else the app has written it to the terminal, and said so to the client
            raise
    return status, b"".join(chunks)
