"""One shape for everything that goes wrong: {"error": {"message": ..., "field": ...}}.

A mistake in a request is a 4xx with a sentence that says what to change. A bug of ours is a 500 that tells
nothing of the inside, and a traceback on the server's own terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from glassgpt.errors import UserError
from glassgpt.http.responses import json_response

log = logging.getLogger("glassgpt.http")


class Refusal(Exception):
    """A request that is answered with an error, and why."""

    def __init__(
        self, status: int, message: str, field: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field
        self.headers = headers


def error_response(
    status: int, message: str, field: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    made = json_response({"error": {"message": message, "field": field}}, status)
    made.headers.update({} if headers is None else headers)
    return made


def install(app: FastAPI) -> None:
    """Let the app answer every error in the one shape."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return error_response(error.status, error.message, error.field, error.headers)

    @app.exception_handler(UserError)
    async def mistaken(request: Request, error: UserError) -> Response:
        return error_response(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        message, field = explain(error.errors())
        return error_response(422, message, field)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        sentences = {
            400: "The body is not JSON that can be read.",
            404: f"There is nothing at {request.url.path[:200]}.",
            405: f"{request.method} is not possible at {request.url.path[:200]}.",
        }
        message = sentences.get(error.status_code, str(error.detail))
        return error_response(error.status_code, message, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        log.error("%s %s", request.method, request.url.path, exc_info=error)
        return error_response(500, "The server made a mistake; its terminal says more.")


def explain(problems: Sequence[Any]) -> tuple[str, str | None]:
    """One sentence and the field's name out of what the validation found: the first thing is enough."""
    first = problems[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        return "The body is not JSON.", None
    field = ".".join(where) if where else None
    said = str(first["msg"]).removeprefix("Value error, ")
    return f"{field if field is not None else 'The body'}: {said[:1].lower()}{said[1:][:300]}", field
