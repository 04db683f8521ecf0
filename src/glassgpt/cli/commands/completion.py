"""`glassgpt completion SHELL`: tab completion."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Annotated, Literal

from glassgpt.cli.options import Positional, flag
from glassgpt.cli.parse import load_command


def command(
    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], flag("your shell", default="")],
) -> int:
    """Print a completion script for your shell. Save it where the shell looks for one, as shown below."""
    import tyro

    from glassgpt.cli import COMMANDS
    from glassgpt.cli.tyro_parse import MARKERS, REGISTRY, with_tyro_annotations

    app = tyro.extras.SubcommandApp()
    for name, entry in COMMANDS.items():
        command = load_command(name)
        app.command(name=name, help=entry.summary)(with_tyro_annotations(command, command))
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        app.cli(prog="glassgpt", args=["--tyro-print-completion", shell], config=MARKERS, registry=REGISTRY)
    sys.stdout.write(script.getvalue())
    return 0
