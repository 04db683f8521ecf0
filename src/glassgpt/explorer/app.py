"""The Explorer's server: models, traces, the worker that computes, and the endpoints under /api/v1."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI

from glassgpt.explorer.models import Model, Models
from glassgpt.explorer.routes import export, generate, intervene, trace
from glassgpt.explorer.routes.trace import API, Explorer
from glassgpt.explorer.traces import MOST_TRACES, Traces
from glassgpt.gpt import GPT
from glassgpt.http import errors, static_files
from glassgpt.http.guard import Guard
from glassgpt.http.worker import Worker

BODY_LIMIT = 256_000  # the longest text in JSON, where a character may take six, and room for many edits
PAGE = files("glassgpt.explorer") / "page"


def make_app(
    gpt: GPT, compare: GPT | None = None, *, host: str = "127.0.0.1", most_traces: int = MOST_TRACES
) -> FastAPI:
    """The Explorer of one model, or of two. `host` is where it will listen."""
    app = FastAPI(title="GlassGPT Explorer", docs_url=None, redoc_url=None, openapi_url=f"{API}/openapi.json")
    app.add_middleware(Guard, host=host, body_limit=BODY_LIMIT)
    errors.install(app)
    models = Models([Model(gpt)] + ([] if compare is None else [Model(compare)]))
    explorer = Explorer(models, Traces(models, most_traces), Worker())
    trace.install(app, explorer)
    intervene.install(app, explorer)
    generate.install(app, explorer)
    export.install(app, explorer, PAGE)
    static_files.install(app, PAGE)
    return app
