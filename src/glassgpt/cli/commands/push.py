"""`glassgpt push FOLDER NAME`: upload a model to the Hugging Face hub."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.parser.options import Flag, Positional


def command(
    folder: Annotated[Positional[str], Flag("a model's folder", "FOLDER")],
    name: Annotated[Positional[str], Flag("the name on the hub, OWNER/NAME", "NAME")],
    *,
    license: Annotated[
        str | None, Flag("the license in the card, such as mit", "NAME", default="none")
    ] = None,
    private: Annotated[bool, Flag("make the repository private, if it is new")] = False,
    message: Annotated[str | None, Flag("of the commit", "TEXT", default="Upload NAME")] = None,
    dry_run: Annotated[bool, Flag("show what would be sent, with the card, and exit")] = False,
    json: Annotated[bool, Flag("print the result as one JSON object")] = False,
) -> int:
    """Upload a model's folder to the Hugging Face hub, in one commit. A README.md is the model's card;
    without one, a card is written, from MODEL_CARD.md if there is one. The token is that of `hf auth login`,
    or HF_TOKEN."""
    from glassgpt.weights.push import plan_push, push

    upload = plan_push(folder, name, license)
    for note in upload.notes:
        terminal.note(f"note: {note}")
    url = None
    if not dry_run:
        url = push(upload, private=private, message=message, progress=progress_bar.progress)
    if json:
        files = {path.name: size for path, size in upload.files}
        print(
            jsonlib.dumps(
                {"name": name, "format": upload.format, "files": files, "card": upload.card, "url": url}
            )
        )
    elif url is not None:
        print(url)
    else:
        table = terminal.table("file", ">size")
        for path, size in upload.files:
            table.add_row(path.name, terminal.size(size))
        if upload.new_card:
            table.add_row("README.md (new)", terminal.size(len(upload.card.encode())))
        terminal.show(table)
        print(f"\n{upload.card}", end="")
        terminal.note(f"nothing was sent; without --dry-run this goes to {name}")
    return 0
