"""`glassgpt --help`: one screen that teaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from glassgpt import __version__
from glassgpt.cli import terminal

if TYPE_CHECKING:
    from glassgpt.cli import Verb


def overview(verbs: Mapping[str, Verb]) -> None:
    from rich.text import Text

    page = Text()
    page.append("glassgpt", style="title")
    page.append(
        f" {__version__}  GPT-2 made of glass: run it and see what happens inside.\n\n", style="quiet"
    )
    for name, verb in verbs.items():
        page.append(f"  {name:<12}", style="accent")
        page.append(f"{verb.does}\n")
        page.append(f"  {'':<12}$ {verb.examples[0]}\n", style="quiet")
    page.append("\nglassgpt VERB --help", style="accent")
    page.append(" shows a verb's options and more examples.\n")
    page.append("A MODEL is a name (default, tiny, gpt2, owner/name), a folder or a file.\n")
    page.append("Results go to stdout, all else to stderr; --json is for programs.")
    terminal.show(page)
