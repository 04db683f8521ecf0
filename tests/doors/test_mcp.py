"""`glassgpt mcp`, started by its command, with the official client. `make test-doors` installs it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp is not installed: make test-doors installs it")

from mcp import Client, StdioServerParameters

import glassgpt
from tests.conftest import SHIPPED

TEXT = "The old house stood at the end of the lane"
COMMAND = StdioServerParameters(command=sys.executable, args=["-m", "glassgpt", "mcp", "--model", SHIPPED])


def test_the_official_client() -> None:
    gpt = glassgpt.load(SHIPPED)

    async def run() -> None:
        async with Client(COMMAND) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"generate", "next", "score", "trace", "ablate", "tokens"}
            assert "base model" in (tools["generate"].description or "")
            limits = tools["generate"].input_schema["properties"]["max_new_tokens"]
            assert limits["maximum"] == 1000

            async def call(name: str, **arguments: Any) -> Any:
                answer = await client.call_tool(name, arguments)
                assert not answer.is_error, answer.content
                return answer.structured_content

            text = await call("generate", prompt=TEXT, max_new_tokens=6, temperature=0)
            assert text["text"] == gpt.generate(TEXT, max_new_tokens=6, temperature=0).text
            assert len((await call("next", text=TEXT, k=3))["next"]) == 3
            assert (await call("score", text=TEXT))["perplexity"] > 1
            assert len((await call("trace", text=TEXT))["lens"]) == gpt.config.n_layer + 1
            assert (await call("ablate", text=TEXT, layer=0, part="head", number=0))["kl"] >= 0
            assert (await call("tokens", text=TEXT))["count"] == len(gpt.encode(TEXT))
            for name, arguments, says in (
                ("trace", {"text": TEXT, "position": 99}, "outside the text"),
                ("generate", {"prompt": TEXT, "max_new_tokens": 10**6}, "1000"),
                ("next", {"text": "x" * 30_000}, "20000"),
            ):
                answer = await client.call_tool(name, arguments)
                assert answer.is_error
                assert says in answer.content[0].text
                assert "Traceback" not in answer.content[0].text

    asyncio.run(run())
