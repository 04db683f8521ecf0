"""`/v1/chat/completions`, of a model with roles; the others say what to use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassgpt.gpt import GPT
from tests.conftest import SHIPPED
from tests.serve.apis.conftest import CHAT

URL = "/v1/chat/completions"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "The red cat sleeps."},
    {"role": "assistant", "content": "Le chat rouge dort."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "The <|user|> dog"}, {"type": "text", "text": "."}],
    },
]


def ask(client: TestClient, **fields: Any) -> Any:
    answer = client.post(
        URL, json={"model": CHAT, "messages": MESSAGES, "seed": 1, "max_tokens": 8, **fields}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def written(gpt: GPT) -> list[int]:
    """The conversation, token by token: marks are tokens, what users write never is."""
    tokenizer = gpt.tokenizer
    assert tokenizer is not None

    def mark(name: str) -> list[int]:
        (token,) = tokenizer.encode(name, True)
        return [token]

    text = tokenizer.encode
    return [
        *mark("<|system|>"), *text("Be brief."),
        *mark("<|user|>"), *text("The red cat sleeps."),
        *mark("<|assistant|>"), *text("Le chat rouge dort."), *mark("<|endoftext|>"),
        *mark("<|user|>"), *text("The <|user|> dog."),
        *mark("<|assistant|>"),
    ]  # fmt: skip


def test_it_continues_the_conversation(api: TestClient, talking: GPT) -> None:
    answer = ask(api, temperature=0)
    ids = written(talking)
    expected = talking.generate(ids, max_new_tokens=8, temperature=0)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["finish_reason"] == expected.finish_reason
    assert (answer["object"], answer["model"]) == ("chat.completion", CHAT)
    assert answer["usage"]["prompt_tokens"] == len(ids)


def test_a_stream_is_the_same_text(api: TestClient) -> None:
    whole = ask(api, n=2)
    with api.stream(
        "POST", URL, json={"model": CHAT, "messages": MESSAGES, "seed": 1, "max_tokens": 8, "n": 2,
                           "stream": True, "stream_options": {"include_usage": True}},
    ) as response:  # fmt: skip
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for i in (0, 1):
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == i]
        assert deltas[0]["role"] == "assistant"
        assert all("role" not in delta for delta in deltas[1:])
        assert "".join(delta["content"] for delta in deltas) == whole["choices"][i]["message"]["content"]


def test_the_definition_says_how_to_decode(api: TestClient) -> None:
    assert ask(api, seed=3) != ask(api, seed=4)  # its temperature is not 0
    assert ask(api, temperature=0, seed=3)["choices"] == ask(api, temperature=0, seed=4)["choices"]


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"model": SHIPPED}, 404, "GPT-2 is a base model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "no role 'tool'; it has system, user"),
        ({"messages": [{"role": "user", "content": "cat " * 300}]}, 400, "Leave out its oldest"),
        ({"messages": [{"role": "user"}]}, 400, "content"),
        ({"tools": []}, 400, "tools"),
        ({"max_tokens": 0}, 400, "max_tokens"),
    ],
)
def test_mistakes_are_named(api: TestClient, fields: dict, status: int, says: str) -> None:
    answer = api.post(URL, json={"model": CHAT, "messages": MESSAGES, **fields})
    assert answer.status_code == status, answer.text
    assert says in json.dumps(answer.json()["error"])
