"""The page in one file, with a trace inside, which works from disk without a server.

The modules travel as data: URLs in an import map, the styles in place, and the answers in a block of JSON.
What happens inside the blocks travels once, as arrays, from which `page/offline.js` makes the answers about
heads and MLPs. A policy in the file lets exactly these scripts and styles run, by their hashes, and nothing
be fetched.
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

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from glassgpt.explorer import traces
from glassgpt.explorer.routes.trace import API, Explorer
from glassgpt.explorer.schemas import ExportWanted
from glassgpt.explorer.traces import Held
from glassgpt.http.errors import Refusal
from glassgpt.http.responses import array
from glassgpt.http.static_files import listed

MOST_BYTES = 64_000_000  # of arrays in one file: 32 tokens of GPT-2 small take 20 million
LOGITS_BYTES = 16_000_000  # of these, distributions after single tokens; the last ones of a text come first

# Steps within a block, by the names that offline.js knows.
BLOCK_STEPS = {
    "ln_1": "ln_1",
    "q": "attn.q",
    "k": "attn.k",
    "v": "attn.v",
    "merged": "attn.merged",
    "projected": "attn.proj",
    "x_mid": "resid_mid",
    "ln_2": "ln_2",
    "pre": "mlp.fc",
    "post": "mlp.gelu",
    "out": "mlp.proj",
}

# Runs first in the file: the state it was exported with, changed by what the address says; then the page. A
# text in the address is not mixed with the tokens that the state may name instead of one.
START = """
const carried = JSON.parse(document.getElementById("glass-offline").textContent);
const state = new URLSearchParams(carried.hash.replace(/^#/, ""));
const wanted = new URLSearchParams(location.hash.slice(1));
if (wanted.has("text") || wanted.has("ids")) for (const name of ["text", "ids"]) state.delete(name);
for (const [name, value] of wanted) state.set(name, value);
try {
  history.replaceState(null, "", `#${state}`);
} catch {
  location.hash = `${state}`;
}
import("glass/main.js");
"""


def install(app: FastAPI, explorer: Explorer, page: Traversable) -> None:
    @app.post(f"{API}/export")
    async def export(wanted: ExportWanted, request: Request) -> Response:
        held = await explorer.worker.run(
            lambda: explorer.traces.of(wanted.model, wanted.checkpoint, wanted.text, wanted.ids), request
        )
        answers: dict[str, Any] = {}
        for question in dict.fromkeys([*usual_questions(wanted, held), *wanted.questions]):
            found = await ask(app, question)
            if found is not None:
                answers[question] = found
        carried = await explorer.worker.run(lambda: carried_json(held), request)
        made = one_file(page, {"hash": wanted.hash, "answers": answers, **carried})
        return Response(
            made,
            media_type="text/html; charset=utf-8",
            headers={"content-disposition": 'attachment; filename="glassgpt.html"'},
        )


def usual_questions(wanted: ExportWanted, held: Held) -> list[str]:
    """What the page asks whenever it opens, for the present text."""
    opening: dict[str, Any] = {"ids": wanted.ids} if wanted.ids is not None else {"text": wanted.text}
    if wanted.model:
        opening["model"] = wanted.model
    if wanted.checkpoint is not None:
        opening["checkpoint"] = wanted.checkpoint
    room = max(1, LOGITS_BYTES // (4 * held.model.n_tokens))
    places = range(len(held.trace) - 1, -1, -1)[:room]
    return [
        "/model",
        f"/vocabulary?model={held.number}",
        "/tally",
        f"/tally?model={held.number}",
        f"/trace {canonical(opening)}",
        *(f"/trace/{held.id}/next?token={place}" for place in places),
    ]


def canonical(body: Any) -> str:
    """The body of a question as `keyOf` of api.js writes it: names sorted, no blanks."""
    if isinstance(body, dict):
        return "{" + ",".join(f"{canonical(name)}:{canonical(body[name])}" for name in sorted(body)) + "}"
    if isinstance(body, list):
        return "[" + ",".join(map(canonical, body)) + "]"
    return json.dumps(body, ensure_ascii=False)


async def ask(app: ASGIApp, question: str) -> Any | None:
    """The answer to a question of the page ("/path?query" or "/path {body}"), or None if there is none."""
    address, blank, body = question.partition(" ")
    path, _, query = address.partition("?")
    if path in ("/generate", "/export"):
        return None
    scope = {
        "type": "http",
        "method": "POST" if blank else "GET",
        "path": API + path,
        "raw_path": (API + path).encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
    }
    status, pieces, sent = 0, [], False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            import anyio

            await anyio.sleep_forever()
        sent = True
        return {"type": "http.request", "body": body.encode("utf-8", "replace"), "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return json.loads(b"".join(pieces)) if status == 200 else None


def carried_json(held: Held) -> dict[str, Any]:
    """The stream between the blocks and the steps inside them, for every token."""
    from glassgpt.model.fast_path import can_run_blocks_alone

    trace, config = held.trace, held.gpt.config
    if not can_run_blocks_alone(held.gpt.torch_model):
        raise Refusal(422, "This model's attention is not GPT-2's: an exported page cannot compute it.")
    wide = 9 * config.n_embd + 2 * config.d_mlp
    size = 4 * len(trace) * (config.n_layer * wide + config.n_embd)
    if size > MOST_BYTES:
        most = len(trace) * MOST_BYTES // size
        raise Refusal(
            422,
            f"{len(trace)} tokens of this model are too much for one file. Export at most {most}.",
            "text",
        )
    layers = []
    for layer in range(config.n_layer):
        names = {name: f"h.{layer}.{step}" for name, step in BLOCK_STEPS.items()}
        found = trace.read(*names.values())
        layers.append({name: array(found[step]) for name, step in names.items()})
        trace.forget()
    return {
        "trace": held.id,
        "n_head": config.n_head,
        "scales": [traces.scale(held.gpt, layer) for layer in range(config.n_layer)],
        "streams": [array(stream) for stream in trace.residual],
        "layers": layers,
    }


def one_file(page: Traversable, carried: dict[str, Any]) -> str:
    files = {name: entry.read_text("utf-8") for name, entry in listed(page)}
    scripts = {name: with_names(name, source) for name, source in files.items() if name.endswith(".js")}
    urls = {name: data_url(source, "text/javascript") for name, source in scripts.items()}
    import_map = json.dumps(
        {
            "imports": {f"glass/{name}": url for name, url in urls.items()},
            # With their hashes here the policy can allow exactly these modules.
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
    # A "<" would let a text end the block; in JSON it can be written as a number.
    data = json.dumps(carried, ensure_ascii=False).replace("<", "\\u003c")
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


def with_names(module: str, source: str) -> str:
    """Imports of neighbours (`./x.js`) by their names in the import map (`glass/x.js`)."""

    def renamed(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(module), found[2]))
        return f'{found[1]}"glass/{path}"'

    return re.sub(r'(\bfrom\s*|\bimport\s*\(?\s*)"(\.{1,2}/[\w./-]+\.js)"', renamed, source)


def data_url(source: str, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(source.encode()).decode()}"


def digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def policy(scripts: list[str], styles: list[str]) -> str:
    """Only these scripts and these styles, and nothing from anywhere else."""

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
