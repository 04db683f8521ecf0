"""`glassgpt mcp`, started by its command, with the official client. `make test-doors` installs it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_it_waits(number: int) -> None:
    process = subprocess.Popen(
        [COMMAND.command, *COMMAND.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    assert b"serverInfo" in process.stdout.readline()  # it serves now, and waits for more
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err


def test_a_client_that_closes_its_end() -> None:
    process = subprocess.Popen(
        [COMMAND.command, *COMMAND.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    request = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    _, err = process.communicate(json.dumps(request).encode() + b"\n", timeout=300)
    assert b"Traceback" not in err
    assert b"internal error" not in err
