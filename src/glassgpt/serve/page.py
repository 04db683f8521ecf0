"""The page at /: what is served, and the latest requests, each of which opens in the Explorer.

Plain HTML without scripts. The Explorer is part of the server only where it was asked for: it shows prompts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from html import escape
from urllib.parse import quote
from weakref import WeakKeyDictionary

from fastapi import APIRouter, FastAPI
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import glassgpt
from glassgpt.http.errors import ApiError, error_response, openai_error
from glassgpt.http.middleware import LimitedBody
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.recent import RecentRequest
from glassgpt.serve.state import ServerState, StateDep

router = APIRouter(include_in_schema=False)

MAX_LINKS = 16  # texts of one request
MAX_BODY_BYTES = 256_000  # to the Explorer, as it has it by itself
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
<a href="/docs">the endpoints</a>, <a href="/v1/models">models</a>, <a href="/metrics">metrics</a> and
<a href="/health">health</a>.</p>
<h2>Models</h2>
<ul>{models}</ul>
<h2>Latest requests</h2>
{requests}
</body>
</html>
"""


@router.get("/")
async def get_page(state: StateDep) -> Response:
    models = "".join(describe_model(state, name) for name in state.pool.specs)
    page = PAGE.format(
        version=escape(glassgpt.__version__),
        models=models,
        refresh='<meta http-equiv="refresh" content="5">\n' if state.settings.explorer else "",
        requests=list_requests(state),
    )
    return Response(page, media_type="text/html; charset=utf-8", headers={"cache-control": "no-store"})


def describe_model(state: ServerState, name: str) -> str:
    explorable = state.settings.explorer and state.pool.specs[name].base is None
    link = f' <a href="{explorer_path(state, name)}">explore</a>' if explorable else ""
    return f"<li><code>{escape(name)}</code>{link}</li>"


def list_requests(state: ServerState) -> str:
    if not state.settings.explorer:
        return (
            "<p>Start the server with <code>--explorer</code> to open requests in the Explorer. Then their "
            "prompts are kept for some minutes.</p>"
        )
    rows = [describe_request(request) for request in state.recent.latest()]
    if not rows:
        return "<p>None yet.</p>"
    head = "<tr><th>request</th><th>model</th><th>seconds ago</th><th>state</th><th>prompt</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def describe_request(request: RecentRequest) -> str:
    cells = [
        " ".join(link_choices(request)),
        escape(request.model),
        f"{time.monotonic() - request.started:.0f}",
        "running" if request.outcome is None else escape(request.outcome),
        escape(request.title),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def link_choices(request: RecentRequest) -> Iterator[str]:
    """A link for each text of a request: the first has the request's name, the others their numbers."""
    name = escape(request.id)
    yield f'<a href="/open/{name}">{name}</a>'
    for number, (prompt, sample) in enumerate(request.choices()[1:MAX_LINKS], start=1):
        yield f'<a href="/open/{name}?prompt={prompt}&amp;sample={sample}">{number}</a>'


@router.get("/open/{id}")
async def open_request(id: str, state: StateDep, prompt: int = 0, sample: int = 0) -> Response:
    """The Explorer of a request's model, with the tokens of one of its texts so far."""
    request = state.recent.get(id)
    if request is None:
        raise ApiError(404, f"The request {id[:60]!r} is not kept (anymore).", "id")
    if (prompt, sample) not in request.choices():
        raise ApiError(404, f"The request has no text for prompt {prompt}, sample {sample} (yet).", "sample")
    ids = json.dumps(request.ids(prompt, sample), separators=(",", ":"))
    target = f"{explorer_path(state, request.model)}#ids={quote(ids)}"
    return RedirectResponse(target, 303, headers={"cache-control": "no-store"})


def explorer_path(state: ServerState, model: str) -> str:
    """Where a model's Explorer is. By its number, since a name may contain anything, also `/` and `..`."""
    return f"/explorer/{1 + list(state.pool.specs).index(model)}/"


class ExplorerMiddleware:
    """ASGI middleware: the Explorer of each model at /explorer/NUMBER/, with its API below it."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app = app
        self.state = state
        self._explorers: WeakKeyDictionary[LoadedModel, ASGIApp] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == "/explorer" or path.startswith("/explorer/")):
            await self.app(scope, receive, send)
            return
        number, slash, inner = path.removeprefix("/explorer").removeprefix("/").partition("/")
        try:
            name = self._find_model(number)
            if not slash:
                await RedirectResponse(explorer_path(self.state, name), 307)(scope, receive, send)
                return
            self.state.check_available()
            # In use until the answer is sent; between two requests, the model may be unloaded.
            async with self.state.pool.use(name) as model:
                inside = {**scope, "path": f"/{inner}", "raw_path": quote(f"/{inner}").encode()}
                await self._get_explorer(model)(inside, LimitedBody(receive, MAX_BODY_BYTES), send)
        except ApiError as error:
            response = error_response(
                error.status_code, error.message, error.field, error.headers, code=error.code,
                format=openai_error,
            )  # fmt: skip
            await response(scope, receive, send)

    def _find_model(self, number: str) -> str:
        """The name of a model by its number; the first one's without it."""
        names = list(self.state.pool.specs)
        known = {"": names[0], **{str(i): name for i, name in enumerate(names, start=1)}}
        if number in known and self.state.pool.specs[known[number]].base is not None:
            raise ApiError(404, "An adapter has no Explorer here. Serve it as a model of its own: --model.")
        if number not in known:
            raise ApiError(404, f"There is no Explorer {number[:60]!r}. See the list at /.")
        return known[number]

    def _get_explorer(self, model: LoadedModel) -> ASGIApp:
        """The Explorer of a model in memory. It goes when the model does."""
        explorer = self._explorers.get(model)
        if explorer is None:
            explorer = self._explorers[model] = make_explorer(model)
        return explorer


def make_explorer(model: LoadedModel) -> FastAPI:
    from glassgpt.explorer.app import make_app

    # The server has checked the Host and the Origin, under the names that it was given.
    return make_app(model.gpt, name=model.spec.name, secure=False)
