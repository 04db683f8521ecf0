"""`glassgpt --help`: every command with an example, on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from glassgpt import __version__
from glassgpt.cli import terminal

if TYPE_CHECKING:
    from glassgpt.cli import Command


def print_overview(commands: Mapping[str, Command]) -> None:
    from rich.text import Text

    page = Text()
    page.append("glassgpt", style="title")
    page.append(f" {__version__}  GPT-2 made of glass: run it, look inside it, train it.\n\n", style="quiet")
    for name, command in commands.items():
        page.append(f"  {name:<12}", style="accent")
        page.append(f"{command.summary}\n")
        page.append(f"  {'':<12}$ {command.examples[0]}\n", style="quiet")
    page.append("\nglassgpt COMMAND --help", style="accent")
    page.append(" lists a command's options, with more examples.\n")
    page.append("A MODEL is a name (default, tiny, gpt2, owner/name), a folder or a file.\n")
    page.append("Results go to stdout, everything else to stderr; --json is for scripts.")
    terminal.show(page)
