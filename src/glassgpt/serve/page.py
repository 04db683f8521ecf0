"""The page at /: what is served, and the latest requests, each of which opens in the Explorer.

Plain HTML without scripts. The Explorer is part of the server only where it was asked for: it shows prompts.
"""

from __future__ import annotations

import json
import time
from html import escape
from urllib.parse import quote

from fastapi import APIRouter, FastAPI
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import glassgpt
from glassgpt.http.errors import ApiError, error_response
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.recent import RecentRequest
from glassgpt.serve.state import ServerState, StateDep

router = APIRouter(include_in_schema=False)

PROMPT_SHOWN = 80  # characters
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{refresh}<title>GlassGPT</title>
</head>
<body>
<h1>GlassGPT {version}</h1>
<p>Completions for the clients of OpenAI's API, at <code>/v1</code>. See also
<a href="/v1/models">models</a>, <a href="/metrics">metrics</a>, <a href="/health">health</a> and
<a href="/openapi.json">the OpenAPI document</a>.</p>
<h2>Models</h2>
<ul>{models}</ul>
<h2>Latest requests</h2>
{requests}
</body>
</html>
"""


@router.get("/")
async def get_page(state: StateDep) -> Response:
    models = "".join(f"<li><code>{escape(name)}</code></li>" for name in state.pool.specs)
    page = PAGE.format(
        version=escape(glassgpt.__version__),
        models=models,
        refresh='<meta http-equiv="refresh" content="5">\n' if state.settings.explorer else "",
        requests=list_requests(state),
    )
    return Response(page, media_type="text/html; charset=utf-8")


def list_requests(state: ServerState) -> str:
    if not state.settings.explorer:
        return (
            "<p>Start the server with <code>--explorer</code> to open requests in the Explorer. Then their "
            "prompts are kept for some minutes.</p>"
        )
    rows = [describe_request(state, request) for request in state.recent.latest()]
    if not rows:
        return '<p>None yet. <a href="/explorer/">Open the Explorer</a>.</p>'
    head = "<tr><th>request</th><th>model</th><th>seconds ago</th><th>state</th><th>prompt</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def describe_request(state: ServerState, request: RecentRequest) -> str:
    model = state.pool.loaded.get(request.model)
    text = "" if model is None else model.texts.decode(request.prompts[0])
    shown = text if len(text) <= PROMPT_SHOWN else text[:PROMPT_SHOWN] + "…"
    name = escape(request.id)
    link = f'<a href="/open/{name}">{name}</a>' if request.model == default_name(state) else name
    cells = [
        link,
        escape(request.model),
        f"{time.monotonic() - request.started:.0f}",
        "running" if request.outcome is None else escape(request.outcome),
        escape(shown),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


@router.get("/open/{id}")
async def open_request(id: str, state: StateDep, prompt: int = 0, sample: int = 0) -> Response:
    """The Explorer, with the tokens of a request so far."""
    request = state.recent.get(id)
    if request is None or not 0 <= prompt < len(request.prompts):
        raise ApiError(404, f"The request {id[:60]!r} is not kept (any more).", "id")
    if request.model != default_name(state):
        raise ApiError(400, f"Only requests to {default_name(state)} can be opened.", "id")
    ids = json.dumps(request.ids(prompt, sample), separators=(",", ":"))
    return RedirectResponse(f"/explorer/#ids={quote(ids)}", 303)


def default_name(state: ServerState) -> str:
    return next(iter(state.pool.specs))


class ExplorerMiddleware:
    """ASGI middleware: the Explorer of the first model at /explorer/, and its API at /api/v1/."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app = app
        self.state = state
        self._explorer: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(("/explorer", "/api/v1/")):
            await self.app(scope, receive, send)
            return
        if path == "/explorer":
            await RedirectResponse("/explorer/", 307)(scope, receive, send)
            return
        if path.startswith("/explorer/"):
            inner = path.removeprefix("/explorer")
            scope = {**scope, "path": inner, "raw_path": inner.encode()}
        try:
            explorer = await self._get_explorer()
        except ApiError as error:
            response = error_response(error.status_code, error.message, headers=error.headers)
            await response(scope, receive, send)
            return
        await explorer(scope, receive, send)

    async def _get_explorer(self) -> ASGIApp:
        if self._explorer is None:
            self.state.check_available()
            async with self.state.pool.use(None) as model:
                model.users += 1  # from now on it stays
                self._explorer = make_explorer(model)
        return self._explorer


def make_explorer(model: LoadedModel) -> FastAPI:
    from glassgpt.explorer.app import make_app
    from glassgpt.http.middleware import SecurityMiddleware

    app = make_app(model.gpt)
    # The server's own has checked the Host and the Origin, under the names that it was given.
    unwanted: object = SecurityMiddleware
    app.user_middleware = [each for each in app.user_middleware if each.cls is not unwanted]
    return app
