"""Answers: JSON with numpy arrays in it, large arrays as base64, and server-sent events."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response, StreamingResponse

NUMBERS = {"f32": "<f4", "u8": "u1"}


def dumped(content: Any) -> bytes:
    """JSON. A float32 is written with as many digits as it has; what is not finite becomes null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def json_response(content: Any, status: int = 200) -> Response:
    return Response(dumped(content), status, media_type="application/json")


def array(values: np.ndarray, kind: str = "f32") -> dict[str, Any]:
    """A large array, little endian: a third of the bytes of its digits, and quick to read in a browser."""
    packed = np.ascontiguousarray(values, NUMBERS[kind])
    return {
        "dtype": kind,
        "shape": list(packed.shape),
        "data": base64.b64encode(packed.tobytes()).decode("ascii"),
    }


def events(items: AsyncIterator[Any]) -> StreamingResponse:
    """Server-sent events, one JSON object each."""

    async def lines() -> AsyncIterator[bytes]:
        async for item in items:
            yield b"data: " + dumped(item) + b"\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")
