"""`glassgpt completion SHELL`: tab completion."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from glassgpt.cli.parse import MARKERS, RULES, command_of, flag


def command(
    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], flag("the shell you type in", default="")],
) -> int:
    """Print a completion script for your shell. Put it where the shell looks, as below."""
    from glassgpt.cli import VERBS

    app = tyro.extras.SubcommandApp()
    for name, verb in VERBS.items():
        app.command(name=name, help=verb.does)(command_of(name))
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        app.cli(prog="glassgpt", args=["--tyro-print-completion", shell], config=MARKERS, registry=RULES)
    sys.stdout.write(script.getvalue())
    return 0
