"""Clean the texts the shipped models learn from: one spelling of quotes, no print marks, no text twice.

    python recipes/default/clean.py CORPUS/books-*.jsonl.xz CORPUS/wiki-*.jsonl.xz -o clean/

For every file a .jsonl.gz, and `clean.json`, which counts what was changed. The same files in the same
order give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.progress import track

QUOTES = str.maketrans(
    {"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "‚": "'", "\u00a0": " ", "\u00ad": None}
)
ITALICS = re.compile(r"(?<!\w)_+|_+(?!\w)")  # _so_ do typists of old books mark slanted words
SPACES = re.compile(r"[ \t\r\f\v]+")
BEFORE_STOP = re.compile(r" +([,.;:!?)])")
# "As of 2009[update]", as the encyclopedia's extractor left it
UPDATE = re.compile(r"\[ ?\[update\]\]")
AS_OF = re.compile(r"^s of (?=[A-Z0-9])", re.MULTILINE)
LONG = 80  # characters from which on a paragraph that is there twice is no accident
LEAST = 400  # characters of a document worth learning from


def cleaned(text: str, source: str) -> str:
    text = text.translate(QUOTES)
    if source == "wiki":
        text = AS_OF.sub("As of ", UPDATE.sub("", text))
        paragraphs = text.split("\n")  # one a line
    else:
        paragraphs = [joined(part) for part in re.split(r"\n\s*\n", ITALICS.sub("", text))]
    tidy = (BEFORE_STOP.sub(r"\1", SPACES.sub(" ", paragraph)).strip() for paragraph in paragraphs)
    return "\n\n".join(paragraph for paragraph in tidy if paragraph)


def joined(paragraph: str) -> str:
    """Hard line breaks undone. Lines that all are short are verse, and stay."""
    lines = [line.strip() for line in paragraph.split("\n") if line.strip()]
    verse = len(lines) > 1 and max(map(len, lines)) < 60
    return ("\n" if verse else " ").join(lines)


class Once:
    """Lets each long paragraph through the first time only."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def __call__(self, text: str) -> str:
        kept = []
        for paragraph in text.split("\n\n"):
            if len(paragraph) >= LONG:
                letters = "".join(filter(str.isalnum, paragraph.lower()))
                key = hashlib.blake2b(letters.encode(), digest_size=8).digest()
                if key in self.seen:
                    continue
                self.seen.add(key)
            kept.append(paragraph)
        return "\n\n".join(kept)


def documents(file: Path) -> Iterator[dict[str, str]]:
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    once, counts = Once(), Counter[str]()
    for file in track(arguments.files, "cleaning"):
        target = arguments.out / file.name.replace(".jsonl.xz", ".jsonl.gz")
        with gzip.open(target, "wb", compresslevel=4) as out:
            for document in documents(file):
                source = document["source"]
                text = cleaned(document["text"], source)
                kept = once(text)
                counts[f"{source} documents read"] += 1
                counts[f"{source} characters read"] += len(document["text"])
                counts[f"{source} characters seen before"] += len(text) - len(kept)
                if len(kept) < max(LEAST, len(text) // 2):
                    counts[f"{source} documents left out"] += 1
                    continue
                counts[f"{source} characters written"] += len(kept)
                line = json.dumps({"text": kept, "title": document["title"]}, ensure_ascii=False)
                out.write(line.encode() + b"\n")
    (arguments.out / "clean.json").write_text(json.dumps(dict(sorted(counts.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()
