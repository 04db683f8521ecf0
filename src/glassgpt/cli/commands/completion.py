"""`glassgpt completion SHELL`: tab completion."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from glassgpt.cli.parse import MARKERS, REGISTRY, flag, load_command


def command(
    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], flag("your shell", default="")],
) -> int:
    """Print a completion script for your shell. Save it where the shell looks for one, as shown below."""
    from glassgpt.cli import COMMANDS

    app = tyro.extras.SubcommandApp()
    for name, entry in COMMANDS.items():
        app.command(name=name, help=entry.summary)(load_command(name))
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        app.cli(prog="glassgpt", args=["--tyro-print-completion", shell], config=MARKERS, registry=REGISTRY)
    sys.stdout.write(script.getvalue())
    return 0
