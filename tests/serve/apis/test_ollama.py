"""Ollama's endpoints. Its own client is in tests/doors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassgpt.gpt import GPT
from glassgpt.serve.app import make_app
from glassgpt.serve.models import ModelPool, find_models
from glassgpt.serve.settings import ServerSettings
from tests.conftest import SHIPPED
from tests.serve.apis.conftest import CHAT
from tests.serve.conftest import PROMPT

GREEDY = {"num_predict": 8, "temperature": 0, "num_ctx": 4096}


def lines(client: TestClient, path: str, **fields: Any) -> list[dict]:
    answer = client.post(path, json={"model": SHIPPED, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_text_is_streamed_line_by_line(api: TestClient, gpt: GPT) -> None:
    expected = gpt.generate(PROMPT, max_new_tokens=8, temperature=0)
    parts = lines(api, "/api/generate", prompt=PROMPT, options=GREEDY)
    assert "".join(part["response"] for part in parts) == expected.text
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert last["done_reason"] == "length"
    assert last["eval_count"] == 8
    assert last["context"] == [*gpt.encode(PROMPT), *expected.tokens]
    whole = api.post(
        "/api/generate",
        json={"model": f"{SHIPPED}:latest", "prompt": PROMPT, "options": GREEDY, "stream": False},
    ).json()
    assert (whole["response"], whole["context"]) == (expected.text, last["context"])
    more = lines(api, "/api/generate", context=last["context"], options=GREEDY)
    again = gpt.generate(last["context"], max_new_tokens=8, temperature=0)
    assert "".join(part["response"] for part in more) == again.text


def test_an_endless_text_and_a_prompt_that_is_too_long(api: TestClient, gpt: GPT) -> None:
    (*_, last) = lines(api, "/api/generate", prompt="word " * 3000, options={"num_predict": 2})
    assert last["eval_count"] == 2
    context = gpt.backend.context
    assert last["prompt_eval_count"] == context - 2
    (*_, last) = lines(
        api, "/api/generate", prompt="A", options={"num_predict": -1, "stop": ["e"], "seed": 1}
    )
    assert last["done_reason"] == "stop"


def test_a_schema_and_a_suffix(api: TestClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    options = {"num_predict": 24, "seed": 0}
    parts = lines(api, "/api/generate", prompt="x", format=schema, options=options)
    assert "a" in json.loads("".join(part["response"] for part in parts))
    (only,) = lines(api, "/api/generate", prompt="The old", suffix=" stood.", options={"num_predict": 4})
    assert only["done"]


def test_roles(api: TestClient, talking: GPT) -> None:
    assert talking.task is not None
    assert talking.task.chat is not None
    assert talking.tokenizer is not None
    ids = talking.task.chat.encode([("system", "S"), ("user", "The cat")], talking.tokenizer)
    expected = talking.generate(ids, max_new_tokens=6, temperature=0).text
    options = {"num_predict": 6, "temperature": 0}
    parts = lines(api, "/api/generate", model=CHAT, system="S", prompt="The cat", options=options)
    assert "".join(part["response"] for part in parts) == expected
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "The cat"}]
    parts = lines(api, "/api/chat", model=CHAT, messages=messages, options=options)
    assert "".join(part["message"]["content"] for part in parts) == expected
    raw = lines(api, "/api/generate", model=CHAT, raw=True, prompt="The cat", options=options)
    assert raw[-1]["prompt_eval_count"] == len(talking.encode("The cat"))


def test_vectors(api: TestClient) -> None:
    answer = api.post("/api/embed", json={"model": SHIPPED, "input": ["a", "word " * 3000]}).json()
    theirs = api.post("/v1/embeddings", json={"model": SHIPPED, "input": "a"}).json()
    assert answer["embeddings"][0] == theirs["data"][0]["embedding"]
    assert len(answer["embeddings"]) == 2
    refused = api.post("/api/embed", json={"model": SHIPPED, "input": "word " * 3000, "truncate": False})
    assert refused.status_code == 400


def test_models(api: TestClient, gpt: GPT) -> None:
    tags = api.get("/api/tags").json()["models"]
    assert [model["name"] for model in tags] == [SHIPPED, CHAT, "red"]
    assert tags[2]["details"]["parent_model"] == SHIPPED
    assert all(model["size"] > 0 and model["digest"] for model in tags)
    assert api.get("/api/ps").json()["models"] == tags
    about = api.post("/api/show", json={"model": SHIPPED}).json()
    assert about["model_info"]["gpt2.block_count"] == gpt.config.n_layer
    assert about["capabilities"] == ["completion", "embedding"]
    assert api.post("/api/show", json={"name": CHAT}).json()["capabilities"][-1] == "chat"
    assert api.post("/api/show", json={"model": "red"}).json()["capabilities"] == ["completion"]
    assert api.get("/api/version").json()["version"]
    assert api.post("/api/generate", json={"model": SHIPPED}).json()["done_reason"] == "load"


@pytest.mark.parametrize(
    ("path", "fields", "status", "says"),
    [
        ("generate", {"model": "gone", "prompt": "x"}, 404, "does not exist"),
        ("generate", {"prompt": "x", "system": "S"}, 400, "no roles"),
        ("generate", {"prompt": "x", "images": ["AA=="]}, 400, "images"),
        ("generate", {"prompt": "x", "template": "{{.}}"}, 400, "template"),
        ("generate", {"prompt": "x", "options": {"mirostat": 2}}, 400, "mirostat"),
        ("generate", {"prompt": "x", "options": {"temperature": -1}}, 400, "temperature"),
        ("generate", {"context": [10**9]}, 400, "vocabulary"),
        ("chat", {"messages": [{"role": "user", "content": "x"}]}, 404, "base model"),
        ("chat", {"messages": [], "tools": [{}]}, 400, "tools"),
        ("embed", {"input": []}, 400, "input"),
        ("show", {"model": "gone"}, 404, "does not exist"),
        ("pull", {}, 404, "Not found"),
    ],
)
def test_errors_have_ollamas_shape(api: TestClient, path: str, fields: dict, status: int, says: str) -> None:
    answer = api.post(f"/api/{path}", json={"model": SHIPPED, **fields})
    assert answer.status_code == status, answer.text
    assert isinstance(answer.json()["error"], str)
    assert says in answer.json()["error"]


def test_the_same_guards_stand_before_it(gpt: GPT) -> None:
    from tests.serve.conftest import copy_of, wait_until

    settings = ServerSettings(api_key="secret", max_body_bytes=1000)
    pool = ModelPool(find_models([SHIPPED]), lambda path: copy_of(gpt), max_batch_size=2)
    with TestClient(make_app(pool, settings), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: client.get("/health").status_code == 200)
        for path in ("/api/generate", "/api/embed", "/v1/embeddings", "/v1/chat/completions"):
            body = {"model": SHIPPED, "prompt": "x"}
            refused = client.post(path, json=body)
            assert refused.status_code == 401
            assert isinstance(refused.json()["error"], str if path.startswith("/api") else dict)
            key = {"authorization": "Bearer secret"}
            assert client.post(path, json={"prompt": "x" * 2000}, headers=key).status_code == 413
            foreign = client.post(path, json=body, headers={**key, "origin": "https://evil.example"})
            assert foreign.status_code == 403
