"""The Explorer's FastAPI app: middleware, error handlers, the routes under /api/v1 and the page's files."""

from __future__ import annotations

from fastapi import FastAPI

from glassgpt.explorer.dependencies import API, PAGE, Explorer
from glassgpt.explorer.models import Model, Models
from glassgpt.explorer.routes import export, generate, intervene, trace
from glassgpt.explorer.traces import MAX_TRACES, TraceCache
from glassgpt.gpt import GPT
from glassgpt.http.errors import add_error_handlers
from glassgpt.http.middleware import SecurityMiddleware
from glassgpt.http.static_files import add_static_files
from glassgpt.http.worker import Worker

MAX_BODY_BYTES = 256_000  # the longest text as JSON, where a character may take six bytes, and many edits


def make_app(
    gpt: GPT, compare: GPT | None = None, *, host: str = "127.0.0.1", max_traces: int = MAX_TRACES
) -> FastAPI:
    """The Explorer of one model, or of two. `host` is the address the server will bind."""
    app = FastAPI(title="GlassGPT Explorer", docs_url=None, redoc_url=None, openapi_url=f"{API}/openapi.json")
    app.add_middleware(SecurityMiddleware, host=host, max_body_bytes=MAX_BODY_BYTES)
    add_error_handlers(app)
    models = Models([Model(gpt)] + ([] if compare is None else [Model(compare)]))
    app.state.explorer = Explorer(models, TraceCache(models, max_traces), Worker())
    for routes in (trace, intervene, generate, export):
        app.include_router(routes.router, prefix=API)
    add_static_files(app, PAGE)
    return app
