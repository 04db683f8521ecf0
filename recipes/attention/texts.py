"""A few books as plain text files, one each: `python recipes/attention/texts.py BOOKS.jsonl.xz -o texts/`."""

from __future__ import annotations

import argparse
import json
import lzma
import re
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("books", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--characters", type=int, default=10_000_000)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    taken = 0
    with lzma.open(arguments.books, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            if taken >= arguments.characters:
                break
            text = re.sub(r"\n{2,}", "\n", json.loads(line)["text"])
            taken += len(text)
            (arguments.out / f"{number:03}.txt").write_text(text, "utf-8")
    print(f"{number} books, {taken:,} characters")


if __name__ == "__main__":
    main()
