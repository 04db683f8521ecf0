"""Cut files into pieces that a narrow door lets through, and join them again on the other side.

    glassgpt convert runs/default half.safetensors --dtype float16     # the weights in one file, and smaller
    python recipes/default/carry.py cut half.safetensors -o pieces/
    python recipes/default/carry.py join pieces/ -o here/

A piece is at most 15 MiB; `pieces.json` holds the SHA-256 of every file, which joining checks. The pieces may
come one by one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

PIECE = 15 << 20
INDEX = "pieces.json"


def cut(files: list[Path], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    index = {}
    for file in files:
        data = file.read_bytes()
        for number, start in enumerate(range(0, len(data), PIECE)):
            (out / f"{file.name}.{number:03}").write_bytes(data[start : start + PIECE])
        index[file.name] = hashlib.sha256(data).hexdigest()
    (out / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def join(pieces: Path, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    joined = []
    for name, known in json.loads((pieces / INDEX).read_text("utf-8")).items():
        data = b"".join(piece.read_bytes() for piece in sorted(pieces.glob(f"{name}.[0-9][0-9][0-9]")))
        if hashlib.sha256(data).hexdigest() != known:
            sys.exit(f"{pieces}: a piece of {name} is missing or damaged. Bring them all again.")
        joined.append(out / name)
        joined[-1].write_bytes(data)
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("cut").add_argument("files", nargs="+", type=Path)
    steps.add_parser("join").add_argument("pieces", type=Path)
    for step in steps.choices.values():
        step.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    if given.step == "cut":
        cut(given.files, given.out)
    else:
        join(given.pieces, given.out)


if __name__ == "__main__":
    main()
