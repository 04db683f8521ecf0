"""The Explorer's FastAPI app: middleware, error handlers, the routes under /api/v1 and the page's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import FastAPI

from glassgpt.explorer.compute_queue import ComputeQueue
from glassgpt.explorer.dependencies import API, PAGE, Explorer
from glassgpt.explorer.models import Model, Models
from glassgpt.explorer.routes import batch, export, generate, intervene, prompt, trace
from glassgpt.explorer.static_files import add_static_files
from glassgpt.explorer.traces import MAX_TRACES, TraceCache
from glassgpt.gpt import GPT, load
from glassgpt.http.errors import add_error_handlers
from glassgpt.http.middleware import SecurityMiddleware

MAX_BODY_BYTES = 256_000  # the longest text as JSON, where a character may take six bytes, and many edits


def make_app(
    gpt: GPT,
    compare: GPT | None = None,
    *,
    name: str | None = None,
    others: Sequence[str] = (),
    load: Callable[[str], GPT] = load,
    host: str = "127.0.0.1",
    max_traces: int = MAX_TRACES,
    secure: bool = True,
) -> FastAPI:
    """The Explorer of one model, or of two; the page can switch to `others`, which `load` opens then.

    `host` is the address the server will bind. The app may be mounted under a prefix: the page's own
    requests are relative to where it was opened. `name` is what the page calls `gpt`. With `secure=False`,
    the app around this one checks Host, Origin and the size of requests.
    """
    app = FastAPI(title="GlassGPT Explorer", docs_url=None, redoc_url=None, openapi_url=f"{API}/openapi.json")
    if secure:
        app.add_middleware(SecurityMiddleware, host=host, max_body_bytes=MAX_BODY_BYTES)
    add_error_handlers(app)
    models = Models([Model(gpt, name)] + ([] if compare is None else [Model(compare)]), list(others), load)
    app.state.explorer = Explorer(models, TraceCache(models, max_traces), ComputeQueue())
    for routes in (trace, prompt, intervene, generate, batch, export):
        app.include_router(routes.router, prefix=API)
    add_static_files(app, PAGE)
    return app
