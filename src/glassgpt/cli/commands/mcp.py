"""`glassgpt mcp`: a model's tools for an assistant, over the Model Context Protocol."""

from __future__ import annotations

import sys

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.errors import UserError


def command(*, model: Model = "default", device: Device = None, dtype: Dtype = None) -> int:
    """Offer a model to an assistant as tools over the Model Context Protocol: generate, next, score, trace,
    ablate, tokens. It speaks on stdin and stdout, and is started by the assistant's program; see
    docs/serve.md."""
    try:
        from glassgpt.serve.mcp_server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "pydantic"):
            raise
        raise UserError("mcp needs the official SDK. Install it with: pip install 'glassgpt[mcp]'") from None
    if sys.stdin.isatty():
        terminal.note(
            "waiting for a client on stdin; an assistant's program starts this. Press Ctrl-C to stop"
        )
    make_server(load(model, device, dtype)).run("stdio")
    return 0
