"""The page as one HTML file with a trace inside, which works from disk without a server.

The modules are data: URLs in an import map, the styles are inline, and the API's responses are a block of
JSON. The activations inside blocks are stored once, as arrays, from which `page/state/offline.js` computes
the responses for heads and MLPs. A content security policy allows exactly these scripts and styles, by their
hashes, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
from importlib.resources.abc import Traversable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from glassgpt.explorer.dependencies import PAGE, ExplorerDep
from glassgpt.explorer.routes.batch import call_api
from glassgpt.explorer.schemas import ExportRequest
from glassgpt.explorer.static_files import list_files
from glassgpt.explorer.traces import CachedTrace, attention_scale
from glassgpt.http.errors import ApiError
from glassgpt.http.responses import encode_array
from glassgpt.inspect.taps import BLOCK_STEPS

router = APIRouter()

MAX_BYTES = 64_000_000  # of arrays in one file: 32 tokens of GPT-2 small take 20 million
MAX_LOGITS_BYTES = 16_000_000  # of these, the logits at single positions, the last positions first

QUICK_METHODS = ("input_x_gradient", "attention_rollout", "direct_logit_attribution")

# offline.js computes the others: from q and k, from z (as a part of merged), or from the next block's input.
COMPUTED_STEPS = {"attn.scores", "attn.scaled", "attn.masked", "attn.weights", "attn.z", "resid_post"}
EXPORTED_STEPS = [step for step in BLOCK_STEPS if step not in COMPUTED_STEPS]

PAGE_FILES = (".html", ".js", ".css", ".svg")
OF_A_SITE = ("engine/", "sw.js")  # which the file, with its one text, does not need

# Runs first in the file: the exported state, overridden by the URL's fragment; then the page. A text in the
# URL replaces the token ids of the state, and the other way round.
START = """
const bundle = JSON.parse(document.getElementById("glass-offline").textContent);
const state = new URLSearchParams(bundle.hash.replace(/^#/, ""));
const override = new URLSearchParams(location.hash.slice(1));
if (override.has("text") || override.has("ids")) for (const name of ["text", "ids"]) state.delete(name);
for (const [name, value] of override) state.set(name, value);
try {
  history.replaceState(null, "", `#${state}`);
} catch {
  location.hash = `${state}`;
}
import("glass/main.js");
"""


@router.post("/export")
async def export(body: ExportRequest, request: Request, explorer: ExplorerDep) -> Response:
    cached = await explorer.queue.run(
        lambda: explorer.traces.get_or_trace(body.model, body.checkpoint, body.text, body.ids), request
    )
    responses: dict[str, Any] = {}
    for key in dict.fromkeys([*initial_requests(body, cached), *body.requests]):
        # The file cannot compute ranks: it has those of all tokens that the cells list.
        is_lens = re.fullmatch(r"/trace/\w+/lens\?position=\d+", key) is not None
        status, content = await call_api(request.app, f"{key}&ranks=true" if is_lens else key)
        if status == 200:
            responses[key] = json.loads(content)
    activations = await explorer.queue.run(lambda: activations_json(cached), request)
    html_file = bundle_page(PAGE, {"hash": body.hash, "responses": responses, **activations})
    return Response(
        html_file,
        media_type="text/html; charset=utf-8",
        headers={"content-disposition": 'attachment; filename="glassgpt.html"'},
    )


def initial_requests(body: ExportRequest, cached: CachedTrace) -> list[str]:
    """The requests that the page sends when it opens, for this text."""
    trace_body: dict[str, Any] = {"ids": body.ids} if body.ids is not None else {"text": body.text}
    if body.model:
        trace_body["model"] = body.model
    if body.checkpoint is not None:
        trace_body["checkpoint"] = body.checkpoint
    count = max(1, MAX_LOGITS_BYTES // (4 * cached.model.n_tokens))
    positions = range(len(cached.trace) - 1, -1, -1)[:count]
    return [
        "/model",
        f"/vocabulary?model={cached.number}",
        "/tally",
        f"/tally?model={cached.number}",
        f"/trace {canonical(trace_body)}",
        *(f"/trace/{cached.id}/next?position={position}" for position in positions),
        *(f"/trace/{cached.id}/lens?position={position}" for position in range(len(cached.trace))),
        f"/trace/{cached.id}/salient-heads?position={len(cached.trace) - 1}",
        *last_token_requests(cached),
    ]


def last_token_requests(cached: CachedTrace) -> list[str]:
    """The page's requests about the next token: rows of the most likely tokens, attributions of the first."""
    last = len(cached.trace) - 1
    owed = {"id": cached.id, "position": last, "target": cached.most_likely(last)[0]}
    return [
        f"/trace/{cached.id}/final?position={last}",
        *(f"/attribute {canonical(owed | {'method': method})}" for method in QUICK_METHODS),
    ]


def canonical(body: Any) -> str:
    """The body of a request as `keyOf` of api.js writes it: sorted keys, no spaces."""
    if isinstance(body, dict):
        return "{" + ",".join(f"{canonical(name)}:{canonical(body[name])}" for name in sorted(body)) + "}"
    if isinstance(body, list):
        return "[" + ",".join(map(canonical, body)) + "]"
    return json.dumps(body, ensure_ascii=False)


def activations_json(cached: CachedTrace) -> dict[str, Any]:
    """The residual stream and the steps inside blocks, for every token."""
    from glassgpt.inspect.forward import make_forward

    trace, config = cached.trace, cached.gpt.config
    if not make_forward(cached.gpt.model).runs_blocks_alone:
        raise ApiError(422, "This model's attention is not GPT-2's, so an exported page cannot compute it.")
    per_token = 9 * config.n_embd + 2 * config.d_mlp
    size = 4 * len(trace) * (config.n_layer * per_token + config.n_embd)
    if size > MAX_BYTES:
        limit = len(trace) * MAX_BYTES // size
        raise ApiError(
            422,
            f"{len(trace)} tokens of this model do not fit in one file. Export at most {limit}.",
            "text",
        )
    layers = []
    for layer in range(config.n_layer):
        activations = trace.read(*(f"h.{layer}.{step}" for step in EXPORTED_STEPS))
        layers.append({step: encode_array(activations[f"h.{layer}.{step}"]) for step in EXPORTED_STEPS})
        trace.clear_cache()
    return {
        "trace": cached.id,
        "n_head": config.n_head,
        "scales": [attention_scale(cached.gpt, layer) for layer in range(config.n_layer)],
        "wte": encode_array(trace["wte"]),
        "wpe": encode_array(trace["wpe"]),
        "residual": [encode_array(residual) for residual in trace.residual],
        "layers": layers,
    }


def bundle_page(page: Traversable, bundle: dict[str, Any]) -> str:
    files = {
        name: entry.read_text("utf-8")
        for name, entry in list_files(page)
        if name.endswith(PAGE_FILES) and not name.startswith(OF_A_SITE)
    }
    scripts = {name: rewrite_imports(name, source) for name, source in files.items() if name.endswith(".js")}
    urls = {name: data_url(source, "text/javascript") for name, source in scripts.items()}
    import_map = json.dumps(
        {
            "imports": {f"glass/{name}": url for name, url in urls.items()},
            # With these hashes the policy allows exactly these modules.
            "integrity": {url: digest(scripts[name]) for name, url in urls.items()},
        }
    )
    head = files["index.html"]
    styles: list[str] = []

    def style(found: re.Match[str]) -> str:
        styles.append(files[found[1]])
        return f"<style>{files[found[1]]}</style>"

    head = re.sub(r'<link rel="stylesheet" href="([\w./-]+)">', style, head)
    head = re.sub(
        r'<link rel="icon" href="([\w./-]+)"',
        lambda found: f'<link rel="icon" href="{data_url(files[found[1]], "image/svg+xml")}"',
        head,
    )
    # A "<" would let a text end the block; in JSON it can be escaped.
    data = json.dumps(bundle, ensure_ascii=False).replace("<", "\\u003c")
    block = (
        f'<script type="application/json" id="glass-offline">{data}</script>\n'
        f'<script type="importmap">{import_map}</script>\n'
        f'<script type="module">{START}</script>'
    )
    head, replaced = re.subn(
        r'<script type="module" src="main.js"></script>', lambda found: block, head, count=1
    )
    assert replaced, "index.html loads main.js in one line"
    allowed = html.escape(policy([import_map, START, *scripts.values()], styles))
    meta = '<meta charset="utf-8">'
    return head.replace(
        meta, f'{meta}\n    <meta http-equiv="Content-Security-Policy" content="{allowed}">', 1
    )


def rewrite_imports(module: str, source: str) -> str:
    """Relative imports (`./x.js`) by their names in the import map (`glass/x.js`)."""

    def rename(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(module), found[2]))
        return f'{found[1]}"glass/{path}"'

    return re.sub(r'(\bfrom\s*|\bimport\s*\(?\s*)"(\.{1,2}/[\w./-]+\.js)"', rename, source)


def data_url(source: str, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(source.encode()).decode()}"


def digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def policy(scripts: list[str], styles: list[str]) -> str:
    """Only these scripts and styles, and no requests."""

    def hashes(sources: list[str]) -> str:
        return " ".join(f"'{digest(source)}'" for source in sources)

    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {hashes(scripts)}",
            f"style-src {hashes(styles)}",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        ]
    )
