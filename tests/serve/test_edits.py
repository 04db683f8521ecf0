"""`edits` of a request for completions: each request has its own, and the others notice nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from glassgpt.gpt import GPT
from glassgpt.inspect import edit_from_dict
from tests.conftest import SHIPPED
from tests.serve.conftest import PROMPT, complete, refused


def some_edits(i: int) -> list[dict[str, Any]]:
    kinds: list[dict[str, Any]] = [
        {"kind": "ablate_head", "layer": i % 2, "head": i % 2},
        {"kind": "steer_token", "layer": 1, "token": 300 + i, "strength": 0.5},
        {"kind": "ablate_mlp", "layer": i % 2, "how": "mean"},
        {"kind": "patch", "step": "h.0.attn.z", "source": [5, 6, 7], "positions": [0, 1, 2]},
    ]
    return [kinds[i % 4], kinds[(i + 1) % 4]]


def test_the_text_is_the_library_s(client: TestClient, gpt: GPT) -> None:
    for i in range(4):
        edits = some_edits(i)
        text = complete(client, edits=edits, temperature=0, max_tokens=6)["choices"][0]["text"]
        parsed = [edit_from_dict(edit) for edit in edits]
        assert text == gpt.generate(PROMPT, edits=parsed, temperature=0, max_new_tokens=6).text


def test_sixty_four_at_once_are_those_alone(client: TestClient) -> None:
    """Requests with different edits, among them some without, all at the same time."""
    bodies = [
        {"max_tokens": 3, "temperature": 0, "logprobs": 1, **({"edits": some_edits(i)} if i % 8 else {})}
        for i in range(64)
    ]
    alone = [complete(client, **body)["choices"] for body in bodies]
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(lambda body: complete(client, **body)["choices"], bodies))
    assert together == alone


def test_samples_and_scores(client: TestClient, gpt: GPT) -> None:
    edits = some_edits(0)
    many = complete(client, edits=edits, n=3, seed=1, max_tokens=4, temperature=1, top_k=20)["choices"]
    parsed = [edit_from_dict(edit) for edit in edits]
    expected = gpt.generate(
        PROMPT, edits=parsed, samples=3, seed=1, max_new_tokens=4, temperature=1.0, top_k=20
    )
    assert [choice["text"] for choice in many] == [each.text for each in expected.samples]
    scores = complete(client, edits=edits[:1], echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
    ids = gpt.encode(PROMPT)
    logits = gpt.intervene(ids[:-1], parsed[0]).logits.astype(np.float64)
    logprob = logits[ids[-1]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert len(scores["token_logprobs"]) == len(ids)
    assert scores["token_logprobs"][-1] == pytest.approx(logprob, abs=1e-4)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([{"kind": "ablate_head", "layer": 9, "head": 0}], "layer 9 is out of range"),
        ([{"kind": "no"}], "unknown kind of edit 'no'"),
        (
            [{"kind": "ablate_head", "layer": 0, "head": 0, "positions": [-99]}],
            "position -99 is out of range",
        ),
        ([{"kind": "steer", "step": "h.0.resid_post", "vector": [1.0, 2.0]}], "cannot be added"),
        ([{"kind": "patch", "step": "h.0.attn.z", "source": [5, 6, 7]}], "same length"),
        ([{"kind": "patch", "step": "h.0.attn.weights", "source": [1, 2], "positions": [0]}], "does not fit"),
        ([{"kind": "steer_token", "layer": 1, "token": 5, "strength": 10**400}], "finite"),
        ([{"kind": "patch", "step": "h.0.attn.z", "source": {"a": 1}}], "a dict is not a prompt"),
        ([{"kind": "patch", "step": f"h.{'9' * 5000}.attn.z", "source": [1]}], "is not a step"),
    ],
)
def test_wrong_edits_are_refused_by_name(
    client: TestClient, edits: list[dict[str, Any]], message: str
) -> None:
    error = refused(client, 400, model=SHIPPED, prompt=PROMPT, edits=edits)
    assert error["param"] == "edits"
    assert message in error["message"]
    assert complete(client, edits=some_edits(1), max_tokens=1)  # the service goes on


def test_too_many_edits(client: TestClient) -> None:
    error = refused(client, 400, model=SHIPPED, prompt=PROMPT, edits=some_edits(0) * 40)
    assert error["param"] == "edits"


def test_a_source_is_traced_once_and_never_while_others_wait(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 patches of 100 prompts were 6,400 traces, in the steps of the engine: nobody got a token."""
    from glassgpt.gpt import GPT

    traced: list[int] = []
    trace = GPT.trace

    def trace_and_count(self: GPT, text: Any) -> Any:
        traced.append(len(text))
        return trace(self, text)

    monkeypatch.setattr(GPT, "trace", trace_and_count)
    sources = [[5, 6, 7], [8, 9, 10, 11]]
    edits = [
        {"kind": "patch", "step": f"h.{i % 2}.attn.z", "source": sources[i % 2], "positions": [0, 1, 2],
         "source_positions": [0, 1, 2]}
        for i in range(16)
    ]  # fmt: skip
    answer = complete(client, prompt=[PROMPT] * 5, edits=edits, max_tokens=2, temperature=0)
    assert len(answer["choices"]) == 5
    assert sorted(traced) == [3, 4]


def test_what_patches_may_ask_for_is_bounded(client: TestClient, gpt: GPT) -> None:
    long = [5] * (gpt.config.n_positions - 1)
    patch = {"kind": "patch", "step": "h.0.attn.z", "positions": [0], "source_positions": [0]}
    many = [{**patch, "source": [number, *long]} for number in range(5)]
    error = refused(client, 400, model=SHIPPED, prompt=PROMPT, edits=many)
    assert "the sources of the patches have more than 4,096 tokens together" in error["message"]
    wide = [{**patch, "step": f"h.{i}.attn.scores", "source": long} for i in range(3)]
    error = refused(client, 400, model=SHIPPED, prompt=PROMPT, edits=wide)
    assert "the patches take more than 32 MB" in error["message"]


def test_requests_with_edits_are_limited(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.serve.edited.MAX_EDITED_REQUESTS", 0)
    error = refused(client, 429, model=SHIPPED, prompt=PROMPT, edits=some_edits(0), max_tokens=1)
    assert "requests with edits wait" in error["message"]
    assert complete(client, max_tokens=1)
