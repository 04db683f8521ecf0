"""Execute a notebook of examples/ and store its outputs, so that they are seen where nothing is executed.

    python docs/notebook.py [look_inside|induction|indirect_objects|steering] [-o examples/look_inside.ipynb]

Figures are stored as SVG alone: their HTML would be the same again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbclient
import nbformat

from glassgpt.files import write_text_files

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = ("look_inside", "induction", "indirect_objects", "steering")


def execute(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
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
    parser.add_argument("name", nargs="?", default=NAMES[0], choices=NAMES)
    parser.add_argument("-o", "--out", type=Path, help="by default the notebook itself")
    given = parser.parse_args()
    notebook = EXAMPLES / f"{given.name}.ipynb"
    out = notebook if given.out is None else given.out
    write_text_files(out.parent, {out.name: execute(notebook)})


if __name__ == "__main__":
    main()
