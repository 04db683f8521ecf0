"""OpenAI's own client, unmodified, against a server that was started by its command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from glassgpt.gpt import GPT
from tests.conftest import SHIPPED
from tests.serve.conftest import PROMPT, ServerProcess

pytestmark = pytest.mark.slow

GREEDY: dict[str, Any] = {"model": SHIPPED, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def openai() -> Any:
    """Imported here: above it would take half a second of every test process."""
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def api(openai: Any, server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(gpt: GPT) -> str:
    return gpt.generate(PROMPT, max_new_tokens=12, temperature=0).text


def test_the_sync_client(api: Any, expected: str) -> None:
    found = api.completions.create(**GREEDY, logprobs=2, echo=True)
    assert found.object == "text_completion"
    assert found.choices[0].text == PROMPT + expected
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 12
    logprobs = found.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    for token, value, top in list(
        zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    )[1:]:
        assert top[token] == value
    assert [model.id for model in api.models.list()] == [SHIPPED]
    assert api.models.retrieve(SHIPPED).id == SHIPPED


def test_the_sync_stream(api: Any, expected: str) -> None:
    parts = list(api.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].text for part in parts[:-1]) == expected
    assert parts[-2].choices[0].finish_reason == "length"
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens == 12


def test_the_async_client(openai: Any, server: ServerProcess, expected: str) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0) as api:
            whole = [api.completions.create(**GREEDY) for _ in range(12)]
            assert {found.choices[0].text for found in await asyncio.gather(*whole)} == {expected}

            async def stream() -> str:
                return "".join(
                    [
                        part.choices[0].text
                        async for part in await api.completions.create(**GREEDY, stream=True)
                    ]
                )

            assert set(await asyncio.gather(*(stream() for _ in range(12)))) == {expected}

    asyncio.run(run())


def test_extras_go_through_extra_body(api: Any, gpt: GPT) -> None:
    extras = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "return_token_ids": True}
    found = api.completions.create(model=SHIPPED, prompt=PROMPT, max_tokens=8, seed=3, extra_body=extras)
    settings = {name: extras[name] for name in ("top_k", "min_p", "repetition_penalty")}
    expected = gpt.generate(PROMPT, max_new_tokens=8, seed=3, temperature=1, **settings)
    assert found.choices[0].text == expected.text
    assert found.choices[0].token_ids == expected.tokens


def test_the_client_s_errors_are_raised(openai: Any, api: Any) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        api.completions.create(**{**GREEDY, "max_tokens": 10**6})
    assert bad.value.code == "context_length_exceeded"
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as bad:
        api.completions.create(**GREEDY, suffix="no")
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        api.completions.create(**{**GREEDY, "model": "gpt-4"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        list(api.completions.create(**GREEDY, stream=True, extra_body={"no_such_field": 1}))
