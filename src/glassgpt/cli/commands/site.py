"""`glassgpt site`: the Explorer as a folder that needs no server."""

from __future__ import annotations

from typing import Annotated

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.listening import importing_server
from glassgpt.cli.parser.options import Flag


def command(
    *,
    out: Annotated[str, Flag("the folder to write; an older site there is replaced", "DIR", short="-o")],
    model: Annotated[
        tuple[str, ...], Flag("a model of the site; the first opens first. Repeat it for more", "MODEL")
    ] = ("default", "tiny"),
    text: Annotated[
        str | None, Flag("the text that the page opens with", "TEXT", default="an example")
    ] = None,
) -> int:
    """Write the Explorer as a site: page, engine and models in a folder that any static host serves. The
    reader's browser computes, and no text leaves it."""
    with importing_server("site"):
        from glassgpt.explorer.site import write_site
    with progress_bar.spinner(f"writing {out}"):
        report = write_site(out, model, text, progress=progress_bar.progress)
    print(report.folder)
    terminal.note(
        f"{report.files} files, {report.bytes / 1e6:.1f} MB, {report.model_bytes / 1e6:.1f} MB of it models. "
        f"To look at it: python -m http.server --directory {report.folder}"
    )
    return 0
