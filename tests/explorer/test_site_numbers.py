"""A page without a server computes what the server computes: every number of every response, to rounding.

`SITE=all pytest -s tests/explorer/test_site_numbers.py` also compares the default model, and all texts.
"""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassgpt
from glassgpt.explorer.app import make_app
from glassgpt.explorer.site_facts import site_facts
from glassgpt.weights.registry import DATA
from tests.conftest import SHIPPED
from tests.explorer.conftest import API, TEXT, Client

PAGE = Path(glassgpt.__file__).parent / "explorer" / "page"
EVERYTHING = os.environ.get("SITE") == "all"

TEXTS = [
    TEXT,
    "A",
    "Guten Tag, bonjour, привет, こんにちは 🎉👩‍👩‍👧",
    "one two three four one two three four one two",
    "",
]
MORE = [
    "the " * 200,
    "for i in range(10):\n    print(i)\nfor j in range(",
    "한국어 문장은 어떻게 나뉘나요?",
    "中文句子是怎么切分的？",
    "مرحبا بالعالم",
    "\t\n  \n spaces   everywhere ",
    "It's we'll they've I'd",
    "1234567890 3.14159 Ⅷ ½",
    "Mary told John that she had lost her keys, and he said that he would help",
    "<|endoftext|> is ordinary text here",
    "é" * 40,
    "A robot may not injure a human being " * 4,
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 and \u200d joiners",
    "word " * 32,
    "x " * 1023 + "y",
]

# Of a value, and of the largest number in the same list: the two add up in different orders.
OF_VALUE, OF_LARGEST = 1e-4, 1e-5


class Engine:
    """The page's engine in Node, asked line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, **line: Any) -> tuple[int, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["status"], answer["body"]

    def get(self, key: str) -> Any:
        status, body = self.ask(key=key)
        assert status == 200, (key, body)
        return body


@contextmanager
def engine_of(*models: Path) -> Iterator[Engine]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here (the page's engine is tested with it)")
    script = Path(__file__).with_name("site_engine.mjs")
    process = subprocess.Popen(
        [node, str(script), str(PAGE), *map(str, models)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FACTS": json.dumps(site_facts())},
    )
    try:
        yield Engine(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of(DATA / SHIPPED) as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Client:
    return Client(make_app(glassgpt.load(SHIPPED, device="cpu")))


def plain(value: Any) -> Any:
    """The server's arrays as lists, like those of the engine."""
    if isinstance(value, dict) and "dtype" in value:
        numbers = np.frombuffer(base64.b64decode(value["data"]), "<f4" if value["dtype"] == "f32" else "u1")
        return {"shape": value["shape"], "data": numbers.tolist()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


class Comparison:
    """Compares answers and counts their numbers."""

    def __init__(self) -> None:
        self.numbers = self.words = 0
        self.worst = 0.0  # of what is allowed

    def compare(self, found: Any, wanted: Any, place: str) -> None:
        if isinstance(wanted, dict):
            assert isinstance(found, dict), place
            assert found.keys() == wanted.keys(), (place, found.keys() ^ wanted.keys())
            for name in wanted.keys() - {"id"}:
                self.compare(found[name], wanted[name], f"{place}.{name}")
        elif isinstance(wanted, list):
            assert isinstance(found, list), place
            assert len(found) == len(wanted), place
            if wanted and all(isinstance(each, int | float) or each is None for each in wanted):
                self._list(found, wanted, place)
            else:
                for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
                    self.compare(one, other, f"{place}[{i}]")
        elif isinstance(wanted, float) or place.endswith(".rank"):
            self._list([found], [wanted], place)
        else:
            self.words += 1
            assert found == wanted, place

    def _list(self, found: list[Any], wanted: list[Any], place: str) -> None:
        assert [x is None for x in found] == [x is None for x in wanted], place
        one, other = (np.array([x for x in some if x is not None], np.float64) for some in (found, wanted))
        self.numbers += len(other)
        if not len(other):
            return
        # A byte at a tie of rounding; a rank among logits that are nearly equal.
        step = 1.0 if place.endswith("attn.weights.data") else 2.0 if "rank" in place else 0.0
        allowed = OF_VALUE * np.abs(other) + OF_LARGEST * np.abs(other).max() + step + 1e-7
        off = np.abs(one - other) / allowed
        self.worst = max(self.worst, float(off.max()))
        i = int(off.argmax())
        assert off[i] <= 1, (place, i, one[i], other[i], f"{off[i]:.1f} times what is allowed")


def requests_about(trace: dict[str, Any], n_layer: int, n_head: int) -> list[str]:
    """What the views ask of a text, at its last token and in its middle, in the first and the last block."""
    last = len(trace["tokens"]) - 1
    keys = ["patterns" if last < 256 else "patterns?layer=1"]
    for position in dict.fromkeys([last, last // 2]):
        keys += [f"{what}?position={position}" for what in ("embedding", "next", "final", "salient-heads")]
        keys += [f"lens?position={position}&ranks=true", f"lens?position={position}&token=11"]
        for layer in (0, n_layer - 1):
            keys += [f"head?layer={layer}&head={n_head - 1}&position={position}"]
            keys += [f"{what}?layer={layer}&position={position}" for what in ("mlp", "neurons")]
    return [*keys, f"scores?layer={n_layer - 1}&head=0", f"final?position={last}&token=3&token=77"]


def check_text(
    engine: Engine, server: Client, comparison: Comparison, text: str, layers: int, heads: int
) -> None:
    body = json.dumps({"text": text})
    wanted, found = server.post("/trace", text=text), engine.get(f"/trace {body}")
    comparison.compare(found, wanted, "/trace")
    for key in requests_about(wanted, layers, heads):
        expected = plain(server._checked(server.http.get(f"{API}/trace/{wanted['id']}/{key}"), 200))
        comparison.compare(engine.get(f"/trace/{found['id']}/{key}"), expected, key)


@pytest.mark.parametrize("text", [*TEXTS, *(MORE if EVERYTHING else MORE[:1])])
def test_every_number_of_a_text(engine: Engine, server: Client, text: str) -> None:
    comparison = Comparison()
    check_text(engine, server, comparison, text, 5, 4)
    print(f"{comparison.numbers:,} numbers; the largest difference: {comparison.worst:.0%} of the limit")
    assert comparison.numbers > 1000


EDITS: list[list[dict[str, Any]]] = [
    [{"kind": "ablate_head", "layer": 2, "head": 1}],
    [{"kind": "ablate_head", "layer": 0, "head": 3, "how": "mean", "positions": [2, 5]}],
    [{"kind": "ablate_neuron", "layer": 3, "neuron": 17, "how": "mean"}],
    [{"kind": "ablate_attention", "layer": 1}, {"kind": "ablate_mlp", "layer": 4, "how": "mean"}],
    [{"kind": "ablate_block", "layer": 3, "positions": [8]}],
    [{"kind": "steer_token", "layer": 2, "token": 260, "strength": -0.7}],
    [{"kind": "patch", "step": "h.1.resid_pre", "positions": [3], "source_positions": [1], "source": ""}],
    [{"kind": "patch", "step": "h.2.attn.z", "head": 2, "source": ""}],
    [{"kind": "patch", "step": "h.0.attn.weights", "source": ""}],
    [{"kind": "patch", "step": "ln_f", "positions": [8], "source": ""}],
    [{"kind": "patch", "step": "wte", "positions": [4, 6], "source": ""}],
    [],
]


@pytest.mark.parametrize("edits", EDITS, ids=lambda edits: "+".join(edit["kind"] for edit in edits) or "none")
def test_edits(engine: Engine, server: Client, edits: list[dict[str, Any]]) -> None:
    source = "A robot could help the people around it"
    texts = (TEXT, source)
    traces = {
        "server": [server.trace(text)["id"] for text in texts],
        "page": [engine.get(f"/trace {json.dumps({'text': text})}")["id"] for text in texts],
    }
    comparison = Comparison()
    for more in ({}, {"position": 4, "only": "next"}, {"only": "lens", "first": 2, "last": 5}):
        bodies = {
            name: {
                "id": ids[0],
                "edits": [e | ({"source": ids[1]} if "source" in e else {}) for e in edits],
                **more,
            }
            for name, ids in traces.items()
        }
        wanted = plain(server.post("/intervene", **bodies["server"]))
        found = engine.get(f"/intervene {json.dumps(bodies['page'])}")
        # Which of two equally small changes comes first is rounding's choice.
        for answer in (found, wanted):
            answer["changes"] = {
                c["id"]: c for c in answer.pop("changes", []) if abs(c["before"] - c["after"]) > 2e-5
            }
        comparison.compare(found, wanted, "/intervene")
    assert comparison.numbers > 16_000


def test_append_attribution_and_tokenizing(engine: Engine, server: Client) -> None:
    comparison = Comparison()
    wanted, found = server.trace(), engine.get(f"/trace {json.dumps({'text': TEXT})}")
    for token in (260, 11, 13):
        wanted = server.post(f"/trace/{wanted['id']}/append", token=token)
        found = engine.get(f"/trace/{found['id']}/append {json.dumps({'token': token})}")
        comparison.compare(found, wanted, "append")
    for method in ("direct_logit_attribution", "attention_rollout"):
        body = {"position": 9, "target": 77, "method": method}
        expected = server.post("/attribute", id=wanted["id"], **body)
        comparison.compare(
            engine.get(f"/attribute {json.dumps({'id': found['id'], **body})}"), expected, method
        )
    parts = {"parts": ["Hello", [16383], " world"]}
    assert engine.get(f"/tokenize {json.dumps(parts)}") == server.post("/tokenize", **parts)
    for path in ("/vocabulary", "/tally"):
        comparison.compare(engine.get(path), server.get(path), path)
    assert engine.get("/examples") == server.get("/examples")


def test_the_same_seeds_draw_the_same_tokens(engine: Engine, server: Client) -> None:
    settings: list[dict[str, Any]] = [
        {"seed": 1},
        {"seed": 2**53, "temperature": 1.2, "top_k": 40},
        {"seed": 7, "top_p": 0.9},
        {"seed": 8, "temperature": 1, "top_k": 500, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 0, "seed": 5},
    ]
    ids = server.post("/tokenize", parts=[TEXT])["ids"]
    for each in settings:
        body = {"ids": ids, "max_new_tokens": 30, **each}
        with server.http.stream("POST", f"{API}/generate", json=body) as response:
            lines = [json.loads(line[5:]) for line in response.iter_lines() if line.startswith("data:")]
        status, found = engine.ask(generate=body)
        assert status == 200, found
        Comparison().compare(found, lines, str(each))


def test_edits_with_generation_are_refused(engine: Engine) -> None:
    edits = [{"kind": "ablate_head", "layer": 0, "head": 0}]
    status, body = engine.ask(generate={"ids": [1], "edits": edits})
    assert (status, body["error"]["field"]) == (422, "edits")
    assert body["error"]["message"].startswith("A site generates without edits.")


REFUSED = [
    ("/trace {}", "Send either text or ids."),
    ('/trace {"ids": [99999]}', "ids: 99999 is not a token id. Use 0 to 16,383."),
    ('/trace {"text": "a", "more": 1}', "more is not a field of this request."),
    ('/trace {"model": 3, "text": "a"}', "There is no model 3."),
    ("/trace/abc/next?position=0", "Trace 'abc' is not cached"),
    ("/trace/ID/next?position=99", "position: 99 is out of range. Use 0 to 8."),
    ("/trace/ID/head?layer=9&head=0&position=0", "layer: 9 is out of range. Use 0 to 4."),
    ("/trace/ID/mlp?layer=0", "position: this field is missing."),
    ('/attribute {"id":"ID","position":1,"target":5,"method":"integrated_gradients"}', "needs gradients"),
    ('/intervene {"id":"ID","edits":[{"kind":"no"}]}', "kind 'no' is not one of"),
    ('/intervene {"id":"ID","edits":[{"kind":"ablate_head","layer":9,"head":0}]}', "layer 9 is out of range"),
    ("/nowhere", "Not found: /nowhere."),
]


@pytest.mark.parametrize(("key", "message"), REFUSED, ids=[key for key, _ in REFUSED])
def test_a_mistake_is_one_line(engine: Engine, key: str, message: str) -> None:
    id = engine.get(f"/trace {json.dumps({'text': TEXT})}")["id"]
    status, body = engine.ask(key=key.replace("ID", id))
    assert 400 <= status < 500
    assert message in body["error"]["message"]
    assert "\n" not in body["error"]["message"]


@pytest.mark.skipif(not EVERYTHING, reason="SITE=all compares the default model as well")
@pytest.mark.parametrize("text", [*TEXTS, *MORE])
def test_every_number_of_the_default_model(default_pair: tuple[Engine, Client], text: str) -> None:
    comparison = Comparison()
    check_text(*default_pair, comparison, text, 12, 8)
    assert comparison.numbers > 1000
    assert math.isfinite(comparison.worst)


@pytest.fixture(scope="module")
def default_pair() -> Iterator[tuple[Engine, Client]]:
    with engine_of(DATA / "default") as found:
        yield found, Client(make_app(glassgpt.load("default", device="cpu")))
