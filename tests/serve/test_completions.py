"""/v1/completions, field by field, against the model in this process."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from glassgpt.gpt import GPT
from glassgpt.serve.models import LoadedModel
from tests.conftest import SHIPPED
from tests.serve.conftest import PROMPT, complete, refused


def chunks(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end with [DONE]."""
    request = {"model": SHIPPED, "prompt": PROMPT, "stream": True, **body}
    with client.stream("POST", "/v1/completions", json=request) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_greedy_completion_is_the_library_s(client: TestClient, gpt: GPT) -> None:
    found = complete(client, max_tokens=12, temperature=0)
    expected = gpt.generate(PROMPT, max_new_tokens=12, temperature=0)
    assert found["object"] == "text_completion"
    assert found["model"] == SHIPPED
    assert [choice["text"] for choice in found["choices"]] == [expected.text]
    assert found["choices"][0]["finish_reason"] == "length"
    prompt_tokens = len(gpt.encode(PROMPT))
    assert found["usage"]["prompt_tokens"] == prompt_tokens
    assert found["usage"]["completion_tokens"] == 12
    assert found["usage"]["total_tokens"] == prompt_tokens + 12


def test_every_kind_of_prompt_says_the_same(client: TestClient, gpt: GPT) -> None:
    ids = gpt.encode(PROMPT)
    one = complete(client, temperature=0)["choices"][0]["text"]
    for prompt, count in ((ids, 1), ([PROMPT, PROMPT], 2), ([ids, ids, ids], 3)):
        choices = complete(client, prompt=prompt, temperature=0)["choices"]
        assert [choice["index"] for choice in choices] == list(range(count))
        assert {choice["text"] for choice in choices} == {one}


def test_null_is_the_default_everywhere(client: TestClient) -> None:
    fields = client.get("/openapi.json").json()["components"]["schemas"]["CompletionRequest"]["properties"]
    nothing = dict.fromkeys(set(fields) - {"model", "prompt", "temperature"})
    assert (
        complete(client, temperature=0, **nothing)["choices"][0]["text"]
        == complete(client, temperature=0)["choices"][0]["text"]
    )


def test_no_prompt_is_the_beginning_of_a_document(client: TestClient, gpt: GPT) -> None:
    expected = gpt.generate(None, max_new_tokens=5, temperature=0).text
    for prompt in (None, "", "<|endoftext|>", [gpt.tokenizer.eot_id]):
        found = complete(client, prompt=prompt, max_tokens=5, temperature=0)
        assert found["choices"][0]["text"] == expected


def test_choices_are_ordered_by_prompt_and_sample(client: TestClient, gpt: GPT) -> None:
    prompts = ["The king", "The sea"]
    found = complete(client, prompt=prompts, n=3, seed=7, max_tokens=6, top_k=40, temperature=0.8)
    assert [choice["index"] for choice in found["choices"]] == list(range(6))
    expected = [
        sample.text
        for prompt in prompts
        for sample in gpt.generate(prompt, samples=3, seed=7, max_new_tokens=6).samples
    ]
    assert [choice["text"] for choice in found["choices"]] == expected
    assert found["usage"]["completion_tokens"] == 36


def test_best_of_returns_the_most_probable(client: TestClient, gpt: GPT) -> None:
    found = complete(client, n=2, best_of=5, seed=3, max_tokens=6)
    expected = gpt.generate(
        PROMPT, samples=2, best_of=5, seed=3, max_new_tokens=6, temperature=1, top_k=None
    ).samples
    assert [choice["text"] for choice in found["choices"]] == [sample.text for sample in expected]
    assert found["usage"]["completion_tokens"] == 30  # all of them were computed


def test_scoring_a_prompt(client: TestClient, gpt: GPT) -> None:
    """echo with max_tokens 0: the log-probabilities are the model's, and exactly those of top_logprobs."""
    choice = complete(client, max_tokens=0, echo=True, logprobs=3)["choices"][0]
    ids = gpt.encode(PROMPT)
    logits = gpt.logits([ids])[0].astype("float64")
    logits -= logits.max(axis=1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert choice["text"] == PROMPT
    found = choice["logprobs"]
    assert found["tokens"] == [gpt.decode([token]) for token in ids]
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    for i, (value, top) in enumerate(
        zip(found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True), start=1
    ):
        # Chunked or whole, the products differ in the last bits of float32: 1e-4 is 100 times the largest.
        assert value == pytest.approx(logprobs[i - 1, ids[i]], abs=1e-4)
        assert top[found["tokens"][i]] == value
        assert 3 <= len(top) <= 4
    assert found["text_offset"] == [len(gpt.decode(ids[:i])) for i in range(len(ids))]


def test_logprobs_of_what_is_generated(client: TestClient) -> None:
    choice = complete(client, max_tokens=8, logprobs=2, echo=True, seed=1)["choices"][0]
    found = choice["logprobs"]
    assert len({len(values) for values in found.values()}) == 1
    for token, value, top, offset in zip(*found.values(), strict=True):
        assert choice["text"][offset:].startswith(token)
        assert top is None or top[token] == value
    assert complete(client, max_tokens=8, logprobs=0, seed=1)["choices"][0]["logprobs"]["top_logprobs"]


def test_tokens_that_are_not_characters_are_bytes(client: TestClient, gpt: GPT) -> None:
    text = "naïve 🤖 日本"
    found = complete(client, prompt=text, max_tokens=0, echo=True, logprobs=1)["choices"][0]["logprobs"]
    ids = gpt.encode(text)
    assert any(token.startswith("bytes:\\x") for token in found["tokens"])
    for token, id, offset in zip(found["tokens"], ids, found["text_offset"], strict=True):
        data = gpt.tokenizer.token_bytes(id)
        if token.startswith("bytes:"):
            assert bytes.fromhex(token.removeprefix("bytes:").replace("\\x", "")) == data
        else:
            assert token.encode() == data
            assert text[offset:].startswith(token)


def test_every_token_has_a_name_of_its_own(client: TestClient, gpt: GPT) -> None:
    tokens = list(range(gpt.config.vocab_size))
    texts = client.app.state.server.pool.loaded[SHIPPED].texts
    assert len({texts[token] for token in tokens}) == len(tokens)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 9, "seed": 4},
        {"max_tokens": 9, "seed": 4, "n": 3, "logprobs": 2},
        {"max_tokens": 9, "temperature": 0, "echo": True, "logprobs": 1, "stop": [" the", ","]},
        {"max_tokens": 0, "echo": True, "logprobs": 1, "prompt": ["One", "Two three"]},
        {"max_tokens": 4, "prompt": "日本 🤖", "echo": True, "logprobs": 0, "seed": 2},
        {"max_tokens": 4, "seed": 2, "return_token_ids": True, "prompt_logprobs": 1, "n": 2},
    ],
)
def test_a_stream_says_the_same(client: TestClient, fields: dict[str, Any]) -> None:
    whole = complete(client, **fields)
    parts = chunks(client, stream_options={"include_usage": True}, **fields)
    last = parts.pop()
    assert last["choices"] == []
    # What the first request left in the prefix cache may serve the second.
    for usage in (last["usage"], whole["usage"]):
        usage.pop("prompt_tokens_details")
    assert last["usage"] == whole["usage"]
    assert all(part["usage"] is None for part in parts)
    assert len({part["id"] for part in parts}) == 1
    for choice in whole["choices"]:
        mine = [part["choices"][0] for part in parts if part["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + [
            choice["finish_reason"]
        ]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            if choice["logprobs"] is not None:
                joined = [value for part in mine if part["logprobs"] for value in part["logprobs"][name]]
                assert joined == choice["logprobs"][name]
        if "token_ids" in choice:
            assert [token for part in mine for token in part["token_ids"]] == choice["token_ids"]
            assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"]
            assert mine[0]["prompt_logprobs"] == choice["prompt_logprobs"]


def test_stop_strings_and_tokens(client: TestClient, gpt: GPT) -> None:
    whole = gpt.generate(PROMPT, max_new_tokens=20, temperature=0)
    stop = whole.text[8:10]
    found = complete(client, max_tokens=20, temperature=0, stop=stop)["choices"][0]
    assert found["finish_reason"] == "stop"
    assert found["text"] == whole.text[: whole.text.index(stop)]
    token = whole.tokens[5]
    found = complete(client, max_tokens=20, temperature=0, stop_token_ids=[token])["choices"][0]
    assert found["text"] == gpt.decode(whole.tokens[: whole.tokens.index(token)])
    later = complete(client, max_tokens=20, temperature=0, stop_token_ids=[token], min_tokens=7)
    assert later["usage"]["completion_tokens"] >= 7


def test_biases_and_penalties(client: TestClient, gpt: GPT) -> None:
    token = gpt.encode(" robot")[0]
    found = complete(client, max_tokens=3, temperature=0, logit_bias={str(token): 100})
    assert found["choices"][0]["text"] == gpt.decode([token] * 3)
    settings = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 1.0}
    expected = gpt.generate(PROMPT, max_new_tokens=20, temperature=0, **settings).text
    assert complete(client, max_tokens=20, temperature=0, **settings)["choices"][0]["text"] == expected


def test_filters_reach_the_sampler(client: TestClient, gpt: GPT) -> None:
    settings = {"top_p": 0.7, "min_p": 0.05, "typical_p": 0.9, "top_k": 30, "temperature": 1.3, "seed": 11}
    expected = gpt.generate(PROMPT, max_new_tokens=12, **settings).text
    assert complete(client, max_tokens=12, **settings)["choices"][0]["text"] == expected
    minus = complete(client, max_tokens=12, seed=-1)["choices"][0]["text"]
    assert minus == gpt.generate(
        PROMPT, max_new_tokens=12, seed=2**64 - 1, temperature=1, top_k=None
    ).text  # fmt: skip


def test_prompt_logprobs_are_by_id(client: TestClient, gpt: GPT) -> None:
    choice = complete(client, max_tokens=1, prompt_logprobs=2, return_token_ids=True)["choices"][0]
    ids = gpt.encode(PROMPT)
    assert choice["prompt_token_ids"] == ids
    assert len(choice["token_ids"]) == 1
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token, entry in zip(ids[1:], others, strict=True):
        assert entry[str(token)]["decoded_token"] == gpt.decode([token])
        assert sorted(value["rank"] for value in entry.values() if value["rank"]) == [1, 2]


def test_prompts_are_truncated_only_if_asked(client: TestClient, gpt: GPT) -> None:
    ids = gpt.encode(PROMPT) * 200
    error = refused(client, 400, model=SHIPPED, prompt=ids)
    assert error["code"] == "context_length_exceeded"
    found = complete(client, prompt=ids, truncate_prompt_tokens=-1, max_tokens=10)
    assert found["usage"]["prompt_tokens"] == gpt.backend.context - 10
    found = complete(client, prompt=PROMPT, truncate_prompt_tokens=3, echo=True, max_tokens=0)
    assert found["choices"][0]["text"] == gpt.decode(gpt.encode(PROMPT)[-3:])
    assert refused(client, 400, model=SHIPPED, max_tokens=2000)["param"] == "max_tokens"


def test_a_stop_string_in_the_prompt_does_not_stop(client: TestClient) -> None:
    """With echo, the prompt is part of the text, but only what follows it is searched."""
    whole = complete(client, max_tokens=6, temperature=0, ignore_eos=True)["choices"][0]["text"]
    found = complete(client, max_tokens=6, temperature=0, ignore_eos=True, echo=True, stop=["house", "e"])
    text = found["choices"][0]["text"]
    assert text == PROMPT + whole.partition("e")[0]
    assert found["choices"][0]["finish_reason"] == ("stop" if "e" in whole else "length")


def test_sixteen_tokens_by_default_and_fewer_where_no_more_fit(client: TestClient, gpt: GPT) -> None:
    assert complete(client, ignore_eos=True)["usage"]["completion_tokens"] == 16
    ids = (gpt.encode(PROMPT) * 200)[: gpt.backend.context - 3]
    found = complete(client, prompt=ids, ignore_eos=True)
    assert found["usage"]["completion_tokens"] == 3
    assert found["choices"][0]["finish_reason"] == "length"
    error = refused(client, 400, model=SHIPPED, prompt=ids, max_tokens=4)
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")


def test_the_end_of_text_is_a_stop_and_not_part_of_it(client: TestClient, gpt: GPT) -> None:
    bias = {str(gpt.tokenizer.eot_id): 100}
    found = complete(client, logit_bias=bias, temperature=0, logprobs=1, echo=True)
    assert found["choices"][0]["text"] == PROMPT
    assert found["choices"][0]["finish_reason"] == "stop"
    assert len(found["choices"][0]["logprobs"]["tokens"]) == len(gpt.encode(PROMPT))
    found = complete(client, logit_bias=bias, temperature=0, ignore_eos=True, max_tokens=3)
    assert found["choices"][0]["finish_reason"] == "length"


def test_usage_counts_each_prompt_once_and_every_text(client: TestClient, gpt: GPT) -> None:
    prompts = ["The king", "A robot must obey the"]
    usage = complete(client, prompt=prompts, n=2, best_of=3, max_tokens=4, ignore_eos=True)["usage"]
    assert usage["prompt_tokens"] == sum(len(gpt.encode(prompt)) for prompt in prompts)
    assert usage["completion_tokens"] == 2 * 3 * 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_offsets_count_characters_also_after_an_echo(client: TestClient, gpt: GPT) -> None:
    prompt = "日本 🤖 naïve"
    choice = complete(client, prompt=prompt, echo=True, logprobs=0, max_tokens=4, seed=1, ignore_eos=True)[
        "choices"
    ][0]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert offsets[len(gpt.encode(prompt))] == len(prompt)  # not its 21 bytes
    for token, offset in zip(tokens, offsets, strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].startswith(token)


def test_chunks_are_not_obfuscated(client: TestClient) -> None:
    """OpenAI's clients send it; asking for it would be ignored, so it is refused."""
    parts = chunks(client, max_tokens=2, stream_options={"include_obfuscation": False})
    assert all("usage" not in part for part in parts)
    error = refused(client, 400, prompt="A", stream=True, stream_options={"include_obfuscation": True})
    assert error["param"] == "stream_options.include_obfuscation"


def test_best_of_as_many_as_n_streams(client: TestClient) -> None:
    found = chunks(client, n=2, best_of=2, max_tokens=2, ignore_eos=True)
    assert {part["choices"][0]["index"] for part in found} == {0, 1}


def test_a_repeated_prompt_is_cached(client: TestClient, gpt: GPT) -> None:
    ids = (gpt.encode("A sentence that is repeated until the prompt is long enough. ") * 20)[:200]
    complete(client, prompt=ids, max_tokens=1, temperature=0)
    usage = complete(client, prompt=ids, max_tokens=1, temperature=0)["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x", "temperature": 0}, "temperature"),
        ({"suffix": "x", "stream": True}, "stream"),
        ({"suffix": "x", "logprobs": 0}, "logprobs"),
        ({"suffix": "x", "n": 17}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"stream_options": {}}, "stream_options"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"logit_bias": {"99999": 1}}, None),
        ({"stop_token_ids": [99999]}, None),
        ({"min_tokens": 99}, None),
    ],
)
def test_a_mistake_is_named(client: TestClient, fields: dict[str, Any], param: str | None) -> None:
    error = refused(client, 400, **{"model": SHIPPED, "prompt": "A", **fields})
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize("name", ["gpt-4", "../../etc/passwd", "https://evil.example/model", "", "tiny/.."])
def test_only_models_that_were_named_exist(client: TestClient, name: str) -> None:
    error = refused(client, 404, model=name, prompt="A")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert client.get(f"/v1/models/{name}x").status_code == 404


JSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": JSON_SCHEMA},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": JSON_SCHEMA}}},
    ],
)
def test_text_that_follows_a_schema(client: TestClient, fields: dict[str, Any]) -> None:
    pytest.importorskip("llguidance")
    choices = complete(client, max_tokens=60, n=3, seed=1, **fields)["choices"]
    for choice in choices:
        found = json.loads(choice["text"])
        assert set(found) == {"name", "age"}
        assert isinstance(found["age"], int)
        assert choice["finish_reason"] == "stop"


def test_text_that_follows_a_pattern(client: TestClient) -> None:
    pytest.importorskip("llguidance")
    assert complete(client, guided_choice=["yes", "no"])["choices"][0]["text"] in ("yes", "no")
    assert complete(client, guided_regex="[0-9]{4}")["choices"][0]["text"].isdigit()
    assert complete(client, guided_grammar='start: "a" "b"*')["choices"][0]["text"].startswith("a")
    assert complete(client, response_format={"type": "text"}, temperature=0)
    error = refused(client, 400, prompt="A", guided_choice=["a"], guided_regex="b")
    assert error["param"] == "guided_choice"
    assert "(" in refused(client, 400, prompt="A", guided_regex="(")["message"]
    assert refused(client, 400, prompt="A", response_format={"type": "xml"})["param"]


def test_a_suffix_chooses_among_guesses(client: TestClient, gpt: GPT) -> None:
    """The guesses after which it is most likely are returned: checked against all guesses, scored one by
    one."""
    body = {"prompt": "Once upon a time there was a", "max_tokens": 3, "seed": 5}
    suffix = " in the forest. They were very happy."
    after = gpt.encode(suffix)
    guesses = complete(client, **body, n=16, return_token_ids=True)["choices"]

    def rate(tokens: list[int]) -> float:
        ids = [*gpt.encode(body["prompt"]), *tokens, *after]
        scored = complete(client, prompt=ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]
        return float(sum(scored["token_logprobs"][-len(after) :]))

    rates = {choice["text"]: rate(choice["token_ids"]) for choice in guesses}
    expected = sorted(rates, key=lambda text: -rates[text])
    found = complete(client, **body, suffix=suffix, n=2)
    assert [choice["text"] for choice in found["choices"]] == expected[:2]
    assert found["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in guesses)
    assert complete(client, **body, suffix="")["choices"][0]["text"] == guesses[0]["text"]


def test_a_suffix_is_encoded_once_for_all_prompts(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, texts = LoadedModel.encode, []
    monkeypatch.setattr(LoadedModel, "encode", lambda self, text: texts.append(text) or encode(self, text))
    complete(client, prompt=["a"] * 5, suffix=" b", max_tokens=1)
    assert texts.count(" b") == 1
