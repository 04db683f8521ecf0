"""`/v1/embeddings`: the mean of a text's final vectors, of length one."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from glassgpt.gpt import GPT
from glassgpt.inspect.forward import make_forward
from glassgpt.serve.apis import embeddings
from tests.conftest import SHIPPED

URL = "/v1/embeddings"
TEXTS = ["The old house", "A ship at sea"]


def ask(client: TestClient, **fields: Any) -> Any:
    answer = client.post(URL, json={"model": SHIPPED, "input": TEXTS, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_is_the_mean_of_the_final_vectors(api: TestClient, gpt: GPT) -> None:
    answer = ask(api)
    for text, item in zip(TEXTS, answer["data"], strict=True):
        final = make_forward(gpt.model).hidden(gpt.encode(text))[0]
        assert np.allclose(final @ gpt.model.wte.weight.T, gpt.trace(text).logits, atol=1e-3)
        mean = np.asarray(final.mean(0), np.float64)
        assert np.allclose(item["embedding"], mean / np.linalg.norm(mean), atol=1e-4)
        assert np.linalg.norm(item["embedding"]) == pytest.approx(1, abs=1e-5)
    count = sum(len(gpt.encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_ids_and_bytes_are_the_same(api: TestClient, gpt: GPT) -> None:
    plain = ask(api)["data"]
    coded = ask(api, encoding_format="base64", input=[gpt.encode(text) for text in TEXTS])["data"]
    for one, other in zip(plain, coded, strict=True):
        assert np.frombuffer(base64.b64decode(other["embedding"]), np.float32).tolist() == one["embedding"]
    assert ask(api, input=TEXTS[1])["data"][0]["embedding"] == plain[1]["embedding"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": ""}, "input.0 is empty"),
        ({"input": []}, "input"),
        ({"input": [[99_999_999]]}, "not in the vocabulary"),
        ({"input": "word " * 5000}, "Shorten it"),
        ({"dimensions": 3}, "Leave it out"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"model": "red"}, "Serve it with --model"),
    ],
)
def test_mistakes_are_named(api: TestClient, fields: dict, says: str) -> None:
    answer = api.post(URL, json={"model": SHIPPED, "input": TEXTS, **fields})
    assert answer.status_code == 400, answer.text
    assert says in json.dumps(answer.json()["error"])


def test_one_request_is_bounded(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "MAX_TOKENS", 5)
    answer = api.post(URL, json={"model": SHIPPED, "input": TEXTS})
    assert answer.status_code == 400
    assert "the limit is 5" in answer.text
    monkeypatch.setattr("glassgpt.serve.state.MAX_EMBEDDING_REQUESTS", 0)
    answer = api.post(URL, json={"model": SHIPPED, "input": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
