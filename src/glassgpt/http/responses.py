"""Responses: JSON with numpy arrays, large arrays as base64, and server-sent events."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response, StreamingResponse

DTYPES = {"f32": "<f4", "u8": "u1"}


def dump_json(content: Any) -> bytes:
    """JSON. A float32 has as many digits as it needs; what is not finite becomes null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def json_response(content: Any, status: int = 200) -> Response:
    return Response(dump_json(content), status, media_type="application/json")


def encode_array(values: np.ndarray, dtype: str = "f32") -> dict[str, Any]:
    """A large array as base64, little endian: a third of the size of its digits, and fast to decode."""
    packed = np.ascontiguousarray(values, DTYPES[dtype])
    return {
        "dtype": dtype,
        "shape": list(packed.shape),
        "data": base64.b64encode(packed.tobytes()).decode("ascii"),
    }


def event_stream(items: AsyncIterator[Any]) -> StreamingResponse:
    """Server-sent events, one JSON object each."""

    async def lines() -> AsyncIterator[bytes]:
        async for item in items:
            yield b"data: " + dump_json(item) + b"\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")
