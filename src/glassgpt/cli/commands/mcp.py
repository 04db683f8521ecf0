"""`glassgpt mcp`: a model's tools for an assistant, over the Model Context Protocol."""

from __future__ import annotations

import os
import signal
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
    server = make_server(load(model, device, dtype))
    end_at_signals()
    try:
        server.run("stdio")
    except BaseExceptionGroup as group:
        if group.split((OSError, ValueError))[1] is not None:  # more than a client that closed its end
            raise
        return 141
    return 0


def end_at_signals() -> None:
    """A signal ends the program at once: a thread that waits for stdin would hold it back, and no file is
    open."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os._exit(128 + number))
