"""The endpoints under /api/v1, in the order the page asks for them. Each is a few lines over `traces`."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from starlette.responses import Response

import glassgpt
from glassgpt.explorer import traces
from glassgpt.explorer.models import Model, Models
from glassgpt.explorer.shapes import AppendWanted, TraceWanted
from glassgpt.explorer.traces import Held, Traces
from glassgpt.gpt import GPT
from glassgpt.http import errors
from glassgpt.http import files as page_files
from glassgpt.http.answers import array, json_response
from glassgpt.http.errors import Refusal
from glassgpt.http.guard import Guard
from glassgpt.http.worker import Worker

API = "/api/v1"
BODY_LIMIT = 256_000  # the longest text in JSON, where a character may take six, and room for many edits

Number = Annotated[int, Query(ge=0, lt=2**31)]


def make_app(gpt: GPT, compare: GPT | None = None, *, host: str = "127.0.0.1") -> FastAPI:
    """The Explorer of one model, or of two."""
    app = FastAPI(title="GlassGPT Explorer", docs_url=None, redoc_url=None, openapi_url=f"{API}/openapi.json")
    app.add_middleware(Guard, host=host, body_limit=BODY_LIMIT)
    errors.install(app)
    models = Models([Model(gpt)] + ([] if compare is None else [Model(compare)]))
    held = Traces()
    worker = Worker()

    def traced(number: int, checkpoint: int | None, text: str | None, ids: list[int] | None) -> Held:
        model = models[number]
        if (text is None) == (ids is None):
            raise Refusal(422, "Send either text or ids.", "text")
        name = "ids" if text is None else "text"
        ids = traces.checked_ids(model, model.encode(text) if text is not None else list(ids or []), name)
        found = held.get(traces.id_of(number, checkpoint, ids))
        return held.add(traces.trace(model, number, checkpoint, ids)) if found is None else found

    @app.get(f"{API}/model")
    def model() -> Response:
        first = models[0]
        return json_response(
            {
                "models": [each.describe() for each in models.all],
                "checkpoints": [{"name": f"step {step:,}", "step": step} for step in first.folders],
                "limits": {"tokens": traces.most_tokens(first), "traces": held.most},
                "version": glassgpt.__version__,
            }
        )

    @app.get(f"{API}/vocabulary")
    def vocabulary(model: Number = 0) -> Response:
        return json_response({"texts": models[model].texts})

    @app.post(f"{API}/trace")
    async def trace(wanted: TraceWanted, request: Request) -> Response:
        def work() -> Any:
            return traces.as_json(traced(wanted.model, wanted.checkpoint, wanted.text, wanted.ids))

        return json_response(await worker.run(work, request))

    @app.post(f"{API}/trace/{{id}}/append")
    async def append(id: str, wanted: AppendWanted, request: Request) -> Response:
        def work() -> Any:
            before = held[id]
            ids = traces.checked_ids(before.model, [*before.ids, wanted.token], "token")
            found = held.get(traces.id_of(before.number, before.checkpoint, ids))
            return traces.as_json(held.add(traces.append(before, wanted.token)) if found is None else found)

        return json_response(await worker.run(work, request))

    @app.get(f"{API}/trace/{{id}}/patterns")
    async def patterns(id: str, layer: Number, request: Request) -> Response:
        def work() -> Any:
            weights = traces.numpy(inside(held[id], layer)["attn.weights"])  # (H, T, T)
            return {"weights": array(np.rint(weights * 255), "u8")}

        return json_response(await worker.run(work, request))

    @app.get(f"{API}/trace/{{id}}/head")
    async def head(id: str, layer: Number, head: Number, token: Number, request: Request) -> Response:
        def work() -> Any:
            it = held[id]
            t = place(it, token)
            if head >= it.gpt.config.n_head:
                raise Refusal(422, f"head: there are {it.gpt.config.n_head}, from 0 on.", "head")
            steps = {name: traces.numpy(x) for name, x in inside(it, layer).items()}
            scaled = steps["attn.scaled"][head, t]  # (T,)
            return {
                "x": traces.numpy(it.residual[layer])[t],
                "ln_1": steps["ln_1"][t],
                "q": steps["attn.q"][head, t],
                "k": steps["attn.k"][head],
                "v": steps["attn.v"][head],
                "scores": steps["attn.scores"][head, t],
                "scaled": scaled,
                "masked": steps["attn.masked"][head, t],
                "weights": steps["attn.weights"][head, t],
                "unmasked": traces.softmax(scaled),
                "z": steps["attn.z"][head, t],
                "merged": steps["attn.merged"][t],
                "projected": steps["attn.proj"][t],
                "x_mid": steps["resid_mid"][t],
            }

        return json_response(await worker.run(lambda: contiguous(work()), request))

    @app.get(f"{API}/trace/{{id}}/mlp")
    async def mlp(id: str, layer: Number, token: Number, request: Request) -> Response:
        def work() -> Any:
            it = held[id]
            t = place(it, token)
            steps = inside(it, layer)
            names = {
                "x_mid": "resid_mid",
                "ln_2": "ln_2",
                "pre": "mlp.fc",
                "post": "mlp.gelu",
                "out": "mlp.proj",
                "x_out": "resid_post",
            }
            return {name: traces.numpy(steps[step][t]) for name, step in names.items()}

        return json_response(await worker.run(work, request))

    @app.get(f"{API}/trace/{{id}}/next")
    async def next(id: str, token: Number, request: Request) -> Response:
        def work() -> Any:
            it = held[id]
            return {"logits": array(it.logits(place(it, token)))}

        return json_response(await worker.run(work, request))

    page_files.install(app, files("glassgpt.explorer") / "page")
    return app


def inside(held: Held, layer: int) -> Any:
    n_layer = held.gpt.config.n_layer
    if layer >= n_layer:
        raise Refusal(422, f"layer: there are {n_layer}, from 0 on.", "layer")
    return held.inside(layer)


def place(held: Held, token: int) -> int:
    if token >= len(held.ids):
        raise Refusal(422, f"token: the text has {len(held.ids)}, from 0 on.", "token")
    return token


def contiguous(answer: dict[str, Any]) -> dict[str, Any]:
    """orjson writes arrays as they lie in memory, so each must lie in order."""
    return {name: np.ascontiguousarray(values) for name, values in answer.items()}
