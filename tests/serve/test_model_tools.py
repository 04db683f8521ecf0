"""The tools of `glassgpt mcp`. The protocol itself, with the official client, is in tests/doors."""

from __future__ import annotations

import json
import math
import sys

import pytest

from glassgpt.errors import UserError
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateHead
from glassgpt.serve.model_tools import MAX_TRACED, ModelTools

TEXT = "The old house stood at the end of the lane"


@pytest.fixture(scope="module")
def tools(gpt: GPT) -> ModelTools:
    return ModelTools(gpt)


def test_they_give_what_the_model_gives(tools: ModelTools, gpt: GPT) -> None:
    text = tools.generate(TEXT, max_new_tokens=5, seed=3)
    assert text["text"] == gpt.generate(TEXT, max_new_tokens=5, seed=3).text
    assert [each["probability"] for each in tools.next(TEXT, 4)["next"]] == [
        pytest.approx(p) for _, p in gpt.next(TEXT, 4)
    ]
    assert "".join(each["text"] for each in tools.tokens(TEXT)["tokens"]) == TEXT
    score = tools.score(TEXT)
    loss = gpt.trace(TEXT).token_loss
    bits = [each["bits"] for each in score["tokens"]]
    assert bits == pytest.approx(loss.nats[1:] / math.log(2), abs=1e-3)
    assert score["perplexity"] == pytest.approx(2 ** (sum(bits) / len(bits)), rel=1e-3)


def test_they_look_inside(tools: ModelTools, gpt: GPT) -> None:
    found = tools.trace(TEXT, position=3, k=2)
    trace = gpt.trace(TEXT)
    assert found["token"]["text"] == trace.texts[3]
    assert len(found["lens"]) == gpt.config.n_layer + 1
    best = [layer["predictions"][0]["id"] for layer in found["lens"]]
    assert best == trace.lens().ids[:, 3].tolist()
    for row in found["attention"]:
        weights = trace.attention[row["layer"], row["head"], 3]
        assert row["weight"] == pytest.approx(float(weights.max()))
        assert row["position"] == int(weights.argmax())
    effect = tools.ablate(TEXT, 0, "head", 1)
    assert effect["kl"] == pytest.approx(gpt.intervene(TEXT, AblateHead(0, 1)).kl)
    assert tools.ablate(TEXT, 1, "mlp")["kl"] > 0
    json.dumps([found, effect])  # plain values


def test_mistakes_are_one_line(tools: ModelTools) -> None:
    for call, says in (
        (lambda: tools.trace("word " * (MAX_TRACED + 1)), f"give 1 to {MAX_TRACED}"),
        (lambda: tools.trace(TEXT, position=99), "outside the text"),
        (lambda: tools.score("A"), "give 2 to"),
        (lambda: tools.ablate(TEXT, 0, "head"), "give one"),
        (lambda: tools.ablate(TEXT, 0, "mlp", 3), "give none"),
        (lambda: tools.ablate(TEXT, 99, "mlp"), "layer"),
        (lambda: tools.ablate(TEXT, 0, "head", 99), "head"),
    ):
        with pytest.raises(UserError, match=says):
            call()


def test_without_the_sdk_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassgpt.cli import main

    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.delitem(sys.modules, "glassgpt.serve.mcp_server", raising=False)
    assert main(["mcp"]) == 2
    assert "pip install 'glassgpt[mcp]'" in capsys.readouterr().err
