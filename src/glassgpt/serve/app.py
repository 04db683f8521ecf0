"""The server's FastAPI app: middleware, error handlers, the endpoints, and a document that describes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import glassgpt
from glassgpt.http.errors import add_error_handlers, openai_error
from glassgpt.http.middleware import SecurityMiddleware
from glassgpt.serve import docs_page, page, routes
from glassgpt.serve.apis import chat, embeddings, ollama
from glassgpt.serve.auth import ApiKeyMiddleware
from glassgpt.serve.models import ModelPool
from glassgpt.serve.overload import OverloadMiddleware
from glassgpt.serve.request_log import HEADER, RequestLogMiddleware
from glassgpt.serve.settings import ServerSettings
from glassgpt.serve.state import ServerState

APIS = (chat, embeddings, ollama)


def make_app(
    pool: ModelPool, settings: ServerSettings | None = None, wait_for_models: bool = False
) -> FastAPI:
    """The server of a pool's models. They are loaded while it starts; until then /health is 503.

    With `wait_for_models` it starts with them loaded, and fails where one cannot be.
    """
    settings = ServerSettings() if settings is None else settings
    state = ServerState(pool, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if wait_for_models:
            await pool.load_all()
            yield
        else:
            loading = asyncio.create_task(state.load_models(pool.load_all))
            yield
            loading.cancel()
        pool.close()

    app = FastAPI(
        title="GlassGPT", version=glassgpt.__version__, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.server = state
    add_error_handlers(app, openai_error, validation_status=400)
    app.include_router(routes.router)
    for module in APIS:
        app.include_router(module.router)
    app.include_router(page.router)
    app.include_router(docs_page.router)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    # The last one added is the first that a request meets.
    app.add_middleware(OverloadMiddleware, state=state)
    if settings.explorer:
        app.add_middleware(page.ExplorerMiddleware, state=state)
    if settings.api_key is not None:
        app.add_middleware(ApiKeyMiddleware, api_key=settings.api_key)
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's client for browsers sends a dozen others
            expose_headers=["retry-after", HEADER],
        )
    app.add_middleware(
        SecurityMiddleware,
        host=settings.host,
        max_body_bytes=settings.max_body_bytes,
        hosts=settings.allowed_host,
        origins=settings.cors_origin,
        any_host=True,
        wrong_host_status=403,
        error_format=openai_error,
    )
    app.add_middleware(ollama.OllamaErrorsMiddleware)
    routers = [routes.router, *(module.router for module in APIS), page.router, docs_page.router]
    endpoints = [route for router in routers for route in router.routes]
    paths = frozenset({"/openapi.json", *(getattr(route, "path", "") for route in endpoints)})
    app.add_middleware(RequestLogMiddleware, metrics=state.metrics, paths=paths, write=settings.log != "none")
    return app


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, without what FastAPI assumes and this server does not do (422)."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema
