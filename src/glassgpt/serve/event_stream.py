"""A response that is sent piece by piece: server-sent events, or lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from glassgpt.errors import UserError
from glassgpt.http.errors import ApiError, openai_error, user_error_status
from glassgpt.http.responses import dump_json
from glassgpt.serve.completions import ClientDisconnected


def server_sent(content: Any) -> bytes:
    return b"data: " + dump_json(content) + b"\n\n"


def json_line(content: Any) -> bytes:
    return bytes(dump_json(content)) + b"\n"


@dataclass(frozen=True)
class StreamFormat:
    media_type: str
    encode: Callable[[Any], bytes]
    end: bytes
    error: Callable[[int, str, str | None, str | None], Any] = openai_error


SERVER_SENT_EVENTS = StreamFormat("text/event-stream", server_sent, b"data: [DONE]\n\n")


class EventStream(Response):
    """Chunks, then the format's end. The request's resources are released at the end."""

    def __init__(
        self,
        chunks: AsyncIterator[dict[str, Any]],
        first: dict[str, Any],
        held: AsyncExitStack,
        format: StreamFormat = SERVER_SENT_EVENTS,
    ) -> None:
        super().__init__(media_type=format.media_type, headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self.chunks = chunks
        self.first = first
        self.held = held
        self.format = format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        encode = self.format.encode
        async with self.held:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await write(encode(self.first))
                async for chunk in self.chunks:
                    await write(encode(chunk))
                await write(self.format.end, more=False)
            except ClientDisconnected:
                return
            except (UserError, ApiError) as error:
                status = error.status_code if isinstance(error, ApiError) else user_error_status(error)
                code = error.code if isinstance(error, ApiError) else None
                await write(encode(self.format.error(status, str(error), None, code)), more=False)
