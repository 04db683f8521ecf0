"""Execute examples/look_inside.ipynb and store its outputs, so that they are seen where nothing is executed.

    python docs/notebook.py [-o examples/look_inside.ipynb]

Figures are stored as SVG alone: their HTML would be the same again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbclient
import nbformat

from glassgpt.files import write_text_files

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "look_inside.ipynb"


def execute() -> str:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # Output that comes later than this after a cell has ended is dropped; the default is 4 s.
    patient = dict.fromkeys(("timeout", "startup_timeout", "iopub_timeout"), 600)
    nbclient.NotebookClient(notebook, kernel_name="python3", **patient).execute()
    notebook.metadata["language_info"] = {"name": "python"}  # not the version of this Python
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        for output in cell.get("outputs", ()):
            if "image/svg+xml" in output.get("data", ()):
                output.data.pop("text/html", None)
    return nbformat.writes(notebook) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=NOTEBOOK)
    given = parser.parse_args()
    write_text_files(given.out.parent, {given.out.name: execute()})


if __name__ == "__main__":
    main()
