"""Requests that the page would never send: each gets a 4xx with a reason, and the server keeps running."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassgpt.explorer.app import MAX_BODY_BYTES, make_app
from glassgpt.explorer.compute_queue import ComputeQueue
from glassgpt.explorer.routes.generate import MAX_GENERATIONS, generate
from glassgpt.explorer.schemas import GenerateRequest
from glassgpt.gpt import GPT
from glassgpt.http.errors import ApiError
from glassgpt.http.middleware import SecurityMiddleware, same_origin
from tests.explorer.conftest import API, TEXT, Client, refusal

JSON = {"content-type": "application/json"}


def alive(client: Client) -> None:
    assert client.get("/model")["models"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost@evil.example",
        "evil.example:8124",
        "10.0.0.1",
        "a/b",
        "[::1",
    ],
)
def test_a_host_that_is_not_ours_is_refused(client: Client, host: str) -> None:
    for path in ("/", f"{API}/model"):
        status, message, _ = client.refused("GET", path, headers={"host": host})
        assert status == 421
        assert "Host" in message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:9000"])
def test_this_machines_own_names_are_answered(client: Client, host: str) -> None:
    assert client.http.get(f"{API}/model", headers={"host": host}).status_code == 200


def test_a_server_for_the_network_answers_to_addresses_and_its_own_name() -> None:
    import socket

    guard = SecurityMiddleware(None, host="0.0.0.0")  # type: ignore[arg-type]
    assert guard.is_allowed_host("192.168.1.7:8124")
    assert guard.is_allowed_host(socket.gethostname())
    assert guard.is_allowed_host("[fe80::1]")
    assert not guard.is_allowed_host("rebound.example")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", "file://", ""])
def test_another_origin_is_refused(client: Client, origin: str) -> None:
    given = {"json": {"text": TEXT}, "headers": {"origin": origin}}
    assert client.refused("POST", f"{API}/trace", **given)[0] == 403


def test_another_sites_page_is_refused_even_without_an_origin(client: Client) -> None:
    for site in ("cross-site", "same-site"):
        assert client.refused("GET", f"{API}/model", headers={"sec-fetch-site": site})[0] == 403
    assert client.http.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to us
    own = {"origin": "http://127.0.0.1:8124", "sec-fetch-site": "same-origin"}
    assert client.http.get(f"{API}/model", headers=own).status_code == 200
    assert same_origin("https://Localhost:1", "localhost:1")


def test_every_answer_carries_the_policy(client: Client) -> None:
    for path in ("/", "/main.js", f"{API}/model", "/nothing", f"{API}/trace/x/next?position=0"):
        answer = client.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == ("no-store" if path.startswith(API) else "no-cache")
        assert "access-control-allow-origin" not in answer.headers


def test_files_have_their_types_and_nothing_else_is_served(client: Client) -> None:
    for path, kind in {"/": "text/html", "/main.js": "text/javascript", "/style.css": "text/css"}.items():
        answer = client.http.get(path)
        assert answer.headers["content-type"].startswith(kind)
        again = client.http.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path in (
        "/../app.py",
        "/%2e%2e/app.py",
        "/..%2fapp.py",
        "/views/../../app.py",
        "/types.d.ts",
        "/..%5capp.py",
        "/%00",
        "/index.html/",
        "/views",
        "/views/",
        "/C:/windows",
        "/\u202e",
        "/main.js/x",
    ):
        assert client.refused("GET", path)[0] == 404, path
    assert client.refused("POST", "/")[0] == 405
    assert client.refused("PUT", f"{API}/trace")[0] == 405


def test_a_body_that_is_too_large_is_refused_before_it_is_read(client: Client) -> None:
    large = json.dumps({"text": "a" * MAX_BODY_BYTES})
    assert client.refused("POST", f"{API}/trace", content=large, headers=JSON)[0] == 413

    def drip() -> Any:
        for _ in range(MAX_BODY_BYTES // 1000 + 2):
            yield b"a" * 1000

    assert client.refused("POST", f"{API}/trace", content=drip(), headers=JSON)[0] == 413
    for length in ("-1", "x", "1" * 30, "²"):
        headers = JSON | {"content-length": length.encode()}
        assert client.refused("POST", f"{API}/trace", content=b"{}", headers=headers)[0] in (400, 413)
    alive(client)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"text": NaN}',
        b'{"text": "\\ud800"}',
        b"nul",
        b"1" * 5000,
        b"[" * 100_000,
        b'{"text":' * 20_000,
        b'{"text": "a", "text2": 1}',
        b'{"text": 5}',
        b'{"text": null}',
        b"{}",
        b'{"ids": [1e9]}',
        b'{"ids": [true]}',
        b'{"ids": ["1"]}',
        b'{"ids": [-1]}',
        b'{"ids": [1.5]}',
        b'{"ids": {}}',
        b'{"ids": [99999]}',
        b'{"text": "a", "ids": [1]}',
        b'{"text": "a", "model": 7}',
        b'{"text": "a", "model": "0"}',
        b'{"text": "a", "checkpoint": -1}',
        b'{"text": "a", "checkpoint": 3}',
        b'{"ids": [99999999999999999999999]}',
        b'{"ids": [NaN]}',
        b'{"text": "' + b"a" * 20_001 + b'"}',
        b'{"ids": [' + b"1," * 2000 + b"1]}",
    ],
)
def test_a_trace_of_nonsense_is_refused(client: Client, body: bytes) -> None:
    assert client.refused("POST", f"{API}/trace", content=body, headers=JSON)[0] in (400, 404, 422)


def test_a_form_is_not_json(client: Client) -> None:
    """What a form on another page could send without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = client.http.post(f"{API}/trace", content=b'{"text": "a"}', headers={"content-type": kind})
        assert refusal(answer)[0] == 422


def test_an_error_names_the_field(client: Client) -> None:
    id = client.trace()["id"]
    for path, field in (
        (f"/trace/{id}/head?layer=99&head=0&position=0", "layer"),
        (f"/trace/{id}/head?layer=0&head=99&position=0", "head"),
        (f"/trace/{id}/head?layer=0&head=0&position=99", "position"),
        (f"/trace/{id}/head?layer=0&head=0", "position"),
        (f"/trace/{id}/mlp?layer=-1&position=0", "layer"),
        (f"/trace/{id}/patterns?layer=x", "layer"),
        (f"/trace/{id}/next?position=1e3", "position"),
        ("/trace/0123456789abcdef/next?position=0", "id"),
        ("/vocabulary?model=2", "model"),
    ):
        status, message, named = client.refused("GET", API + path)
        assert named == field, (path, message)
        assert status == (404 if field in ("id", "model") else 422)
    status, message, field = client.refused("POST", f"{API}/trace", json={"text": TEXT, "chekpoint": 3})
    assert (status, field) == (422, "chekpoint")
    status, message, field = client.refused("POST", f"{API}/trace", json={"text": "a " * 3000})
    assert (status, field) == (422, "text")
    assert f"{client.get('/model')['limits']['tokens']:,}" in message


@pytest.mark.parametrize(
    "edit",
    [
        {"kind": "ablate_head", "layer": 0},
        {"kind": "ablate_head", "layer": 9, "head": 0},
        {"kind": "ablate_head", "layer": 0, "head": 9},
        {"kind": "ablate_neuron", "layer": 0, "neuron": 10**6},
        {"kind": "nothing"},
        {},
        5,
        None,
        {"kind": "ablate_mlp", "layer": "0"},
        {"kind": "ablate_mlp", "layer": 0, "how": "double"},
        {"kind": "patch", "step": "h.0.attn.z", "source": "gone"},
        {"kind": "steer_token", "layer": 0, "token": 10**6},
        {"kind": "steer_token", "layer": 0, "token": 1, "strength": 1e9},
        {"kind": "ablate_head", "layer": 0, "head": 0, "positions": [99]},
        {"kind": "ablate_block", "layer": True},
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(client: Client, edit: Any) -> None:
    body = {"id": client.trace()["id"], "edits": [edit]}
    assert client.refused("POST", f"{API}/intervene", json=body)[0] in (400, 404, 422)


@pytest.mark.parametrize("tap", ["nowhere", "logits", "h.0", "h.99.attn.z", "", "h.0.attn.scores", "../../x"])
def test_a_patch_that_does_not_fit_is_refused(client: Client, tap: str) -> None:
    source = client.trace("A text of another length, and longer than the first")["id"]
    body = {"id": client.trace()["id"], "edits": [{"kind": "patch", "step": tap, "source": source}]}
    assert client.refused("POST", f"{API}/intervene", json=body)[0] in (400, 422)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ids": [99999]},
        {"ids": "abc"},
        {"temperature": -1},
        {"temperature": "hot"},
        {"top_k": 0},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": 2},
        {"seed": -1},
        {"seed": 2**64},
        {"max_new_tokens": 0},
        {"max_new_tokens": 10**6},
        {"model": 5},
        {"checkpoint": 3},
        {"stop": ["x"]},
    ],
)
def test_a_generation_that_makes_no_sense_is_refused(client: Client, wrong: dict[str, Any]) -> None:
    body = {"ids": [1, 2], "max_new_tokens": 1} | wrong
    assert client.refused("POST", f"{API}/generate", json=body)[0] in (400, 404, 422)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"position": 99}, "position"),
        ({"target": 99999}, "target"),
        ({"method": "guess"}, "method"),
        ({"id": "x"}, "id"),
    ],
)
def test_an_attribution_that_makes_no_sense_is_refused(
    client: Client, wrong: dict[str, Any], field: str
) -> None:
    body = {"id": client.trace()["id"], "position": 1, "target": 2} | wrong
    assert client.refused("POST", f"{API}/attribute", json=body)[2] == field


def test_not_a_number_is_refused_in_every_number(client: Client) -> None:
    for name in ("temperature", "top_p", "min_p"):
        for value in ("NaN", "Infinity", "-Infinity", "1e999"):
            body = f'{{"ids": [1], "{name}": {value}}}'
            assert client.refused("POST", f"{API}/generate", content=body, headers=JSON)[0] in (400, 422)


@pytest.mark.parametrize(
    "key",
    ["//[", "http://[/model", "/trace {", "/trace/../export {}", "", " ", "?", "/%ff?\xff", "/\x00", "/é é"],
)
def test_an_invalid_request_is_left_out_of_an_export(client: Client, key: str) -> None:
    answer = client.http.post(f"{API}/export", json={"text": "a", "requests": [key]})
    assert answer.status_code == 200
    assert answer.text.startswith("<!doctype html>")


def test_two_vocabularies_cannot_be_compared(gpt: GPT) -> None:
    import torch

    from glassgpt.backends.torch.backend import TorchBackend
    from glassgpt.config import Config
    from glassgpt.model import GPT2

    torch.manual_seed(0)
    bare = GPT(
        TorchBackend(GPT2(Config(vocab_size=9, n_positions=9, n_embd=8, n_layer=1, n_head=2))), None, "bare"
    )
    client = Client(make_app(gpt, bare))
    body = {"ids": [1, 2], "a": {"model": 0}, "b": {"model": 1}}
    status, message, _ = client.refused("POST", f"{API}/compare", json=body)
    assert status == 422
    assert "vocabularies" in message


def test_a_full_queue_rejects_requests() -> None:
    done: list[int] = []
    refused: list[int] = []

    async def ask(queue: ComputeQueue, gate: threading.Event, number: int) -> None:
        try:
            await queue.run(lambda: (gate.wait(60), done.append(number)))
        except ApiError as error:
            refused.append(error.status_code)

    async def crowd() -> None:
        queue, gate = ComputeQueue(max_queue=3), threading.Event()
        async with anyio.create_task_group() as group:
            for number in range(9):
                group.start_soon(ask, queue, gate, number)
            while len(refused) < 5:
                await anyio.sleep(0.01)
            gate.set()
        await ask(queue, gate, 99)  # and then there is room again

    anyio.run(crowd)
    assert refused == [503] * 5
    assert done == [0, 1, 2, 3, 99]


def test_the_least_recently_used_trace_is_dropped(gpt: GPT) -> None:
    client = Client(make_app(gpt, max_traces=3))
    ids = [client.trace(text)["id"] for text in ("one", "two", "three")]
    client.get(f"/trace/{ids[0]}/next", position=0)  # used again, so "two" is now the oldest
    client.trace("four")
    client.get(f"/trace/{ids[0]}/next", position=0)
    status, message, field = client.refused("GET", f"{API}/trace/{ids[1]}/next?position=0")
    assert (status, field) == (404, "id")
    assert "again" in message


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    "text ids model checkpoint token position id edits kind layer head how target method a b hash "
    "requests".split()
)
PATHS = st.sampled_from(
    ["/trace", "/intervene", "/generate", "/compare", "/export", "/attribute", "/batch", "/trace/ID/append"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=PATHS, body=values | st.dictionaries(FIELDS, values, max_size=5))
def test_no_json_breaks_the_server(client: Client, path: str, body: Any) -> None:
    path = path.replace("ID", client.trace()["id"])
    answer = client.http.post(API + path, content=json.dumps(body), headers=JSON)
    if answer.status_code != 200:
        refusal(answer)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    part=st.sampled_from(
        "head mlp patterns next lens scores neurons final embedding salient-heads nothing".split()
    ),
    query=st.dictionaries(
        st.sampled_from(["layer", "head", "position", "token", "x"]),
        st.integers() | st.floats() | st.text(max_size=9),
        max_size=4,
    ),
)
def test_no_query_breaks_the_server(client: Client, part: str, query: dict[str, Any]) -> None:
    query = {name: str(value).encode("utf-8", "replace").decode() for name, value in query.items()}
    answer = client.http.get(f"{API}/trace/{client.trace()['id']}/{part}", params=query)
    if answer.status_code != 200:
        refusal(answer)


def test_concurrent_generations_are_limited(gpt: GPT) -> None:
    app = make_app(gpt)
    wanted = GenerateRequest(ids=[1], max_new_tokens=1)

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(generate(wanted, app.state.explorer) for _ in range(8)), return_exceptions=True
        )

    responses = asyncio.run(ask())
    assert sum(isinstance(answer, ApiError) for answer in responses) == 8 - MAX_GENERATIONS
