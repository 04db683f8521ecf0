"""The tools of a model over the Model Context Protocol, on stdin and stdout, with the official SDK."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

import glassgpt
from glassgpt.errors import UserError
from glassgpt.gpt import GPT
from glassgpt.serve.model_tools import ModelTools

INSTRUCTIONS = (
    "A GPT-2 that can be looked into. It is a small base model: it continues texts, knows little, and "
    "answers no questions. `next`, `score` and `trace` show how it predicts; `ablate` switches a part "
    "of it off."
)


def make_server(gpt: GPT) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer(
        "glassgpt", instructions=INSTRUCTIONS, version=glassgpt.__version__, log_level="WARNING"
    )
    for tool in ModelTools(gpt).all:
        server.add_tool(in_one_line(tool), name=tool.__name__)
    return server


def in_one_line(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A mistake of the caller as the protocol's error, with the message alone."""

    @functools.wraps(tool)
    def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return tool(*args, **kwargs)
        except UserError as error:
            raise ToolError(str(error)) from None

    return call
