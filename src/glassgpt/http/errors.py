"""One shape for every error of a server: {"error": {"message": ..., "field": ...}}, or OpenAI's.

A mistake in a request is a 4xx with a message that says what to change. A bug is a 500 without details, and a
traceback on the server's terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from glassgpt.errors import ServiceStoppedError, UserError
from glassgpt.http.responses import json_response

log = logging.getLogger("glassgpt.http")


UNKNOWN_FIELD = "unknown_field"  # pydantic's name for an error of ours, with the field as `name`

# (status, message, field, code) -> the body of an error.
ErrorFormat = Callable[[int, str, str | None, str | None], Any]


def field_error(status: int, message: str, field: str | None, code: str | None) -> Any:
    """The Explorer's errors."""
    return {"error": {"message": message, "field": field}}


def openai_error(status: int, message: str, field: str | None, code: str | None) -> Any:
    """The errors of OpenAI's API, as its clients read them."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


class ApiError(Exception):
    """A request that fails with a status, a message, and the name of the field at fault."""

    def __init__(
        self,
        status_code: int,
        message: str,
        field: str | None = None,
        headers: dict[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.message = message
        self.field = field
        self.headers = headers
        self.code = code


def user_error_status(error: UserError) -> int:
    """400, or 503 for a request that the end of the server cut off: it may be sent again."""
    return 503 if isinstance(error, ServiceStoppedError) else 400


def error_response(
    status: int,
    message: str,
    field: str | None = None,
    headers: dict[str, str] | None = None,
    *,
    code: str | None = None,
    format: ErrorFormat = field_error,
) -> Response:
    response = json_response(format(status, message, field, code), status)
    response.headers.update({} if headers is None else headers)
    return response


def add_error_handlers(app: FastAPI, format: ErrorFormat = field_error, validation_status: int = 422) -> None:
    """Send every error in the one shape."""

    @app.exception_handler(ApiError)
    async def handle_api_error(request: Request, error: ApiError) -> Response:
        return error_response(
            error.status_code, error.message, error.field, error.headers, code=error.code, format=format
        )

    @app.exception_handler(UserError)
    async def handle_user_error(request: Request, error: UserError) -> Response:
        return error_response(user_error_status(error), str(error), format=format)

    @app.exception_handler(RequestValidationError)
    async def handle_validation_error(request: Request, error: RequestValidationError) -> Response:
        message, field = explain(error.errors())
        return error_response(validation_status, message, field, format=format)

    @app.exception_handler(HTTPException)
    async def handle_http_exception(request: Request, error: HTTPException) -> Response:
        messages = {
            400: "The body could not be parsed as JSON.",
            404: f"Not found: {request.url.path[:200]}.",
            405: f"{request.method} is not allowed at {request.url.path[:200]}.",
        }
        message = messages.get(error.status_code, str(error.detail))
        headers = None if error.headers is None else dict(error.headers)
        return error_response(error.status_code, message, headers=headers, format=format)

    @app.exception_handler(Exception)
    async def handle_bug(request: Request, error: Exception) -> Response:
        log.error("%s %r", request.method, request.url.path, exc_info=error)
        return error_response(500, "Internal server error. See the server's terminal.", format=format)


def explain(problems: Sequence[Any]) -> tuple[str, str | None]:
    """A message and the field's name from pydantic's errors: the first one is enough."""
    first = problems[0]
    location = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        return "The body is not JSON.", None
    if first["type"] in ("model_attributes_type", "model_type") and not location:
        return (
            "The body is not a JSON object. Send one, with the header Content-Type: application/json.",
            None,
        )
    if first["type"] == UNKNOWN_FIELD:
        name = ".".join([*location, first["ctx"]["name"]])
        return f"{name} {first['msg']}", name
    if first["type"] == "extra_forbidden":
        name = ".".join(location)[:100]
        return f"{name} is not a field of this request. Correct its name, or leave it out.", name
    field = ".".join(location) if location else None
    return f"{field if field is not None else 'The body'}: {explain_value(first)}", field


# What a value is not, by the beginning of pydantic's name for the problem ("int_type", "int_parsing").
KINDS = {
    "int": "an integer",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a string",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
BOUNDS = {"ge": "{} or more", "gt": "more than {}", "le": "{} or less", "lt": "less than {}"}


def explain_value(problem: Any) -> str:
    """What is wrong with a value, and what to send instead; pydantic's words are for programmers."""
    kind, value, context = problem["type"], problem.get("input"), problem.get("ctx", {})
    if kind == "missing":
        return "this field is missing."
    if kind == "extra_forbidden":
        return "there is no such field."
    if kind in ("string_too_long", "too_long"):
        unit = "characters" if kind == "string_too_long" else "items"
        return f"{len(value):,} {unit} are over the limit of {context['max_length']:,}."
    if kind in ("string_too_short", "too_short"):
        return f"it is too short. Use {context['min_length']} or more."
    bound = next((name for name in BOUNDS if name in context), None)
    if bound is not None:
        limit = context[bound]
        limit = f"{int(limit):,}" if limit == int(limit) else f"{limit}"
        return f"{shown(value)} is out of range. Use {BOUNDS[bound].format(limit)}."
    if kind == "literal_error":
        return f"{shown(value)} is not one of {context['expected']}."
    if kind == "union_tag_invalid":
        return f"{context['tag'][:40]!r} is not one of {context['expected_tags']}."
    if kind == "union_tag_not_found":
        return f"it needs the field {context['discriminator']}."
    if kind in ("value_error", "assertion_error"):  # of this package's own checks
        return str(problem["msg"]).partition(", ")[2][:300]
    name = KINDS.get(kind.partition("_")[0])
    return f"{shown(value)} is not {'valid' if name is None else name}."


def shown(value: Any) -> str:
    """A value of a request, cut short."""
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
