"""Clean the texts the shipped models learn from: no print marks, headings marked as such, no text twice.

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
FORMULA = re.compile(r"formula_\d")  # the extractor's word for what it could not read
# "Early life.", alone on its line, is what the extractor made of a heading.
HEADING = re.compile(r"(?!.*[.!?;:] )(?=.{2,70}$)[^\W_]\S*(?: \S+){0,8}\.")
EMPTY = {"References", "External links", "See also", "Notes", "Further reading", "Footnotes", "Bibliography"}
CURLY = 3  # every third book has curly quotes, as print and the web have them
LONG = 80  # characters from which on a paragraph that is there twice is no accident
LEAST = 400  # characters of a document worth learning from


def cleaned(text: str, source: str) -> str:
    text = text.translate(QUOTES)
    if source == "wiki":
        return article(AS_OF.sub("As of ", UPDATE.sub("", text)))
    paragraphs = (clean_up(joined(part)) for part in re.split(r"\n\s*\n", ITALICS.sub("", text)))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def clean_up(paragraph: str) -> str:
    return BEFORE_STOP.sub(r"\1", SPACES.sub(" ", paragraph)).strip()


def article(text: str) -> str:
    """One paragraph a line, and title and headings between the signs that Wikipedia's authors type."""
    title, *lines = [line for line in map(clean_up, text.split("\n")) if line and not FORMULA.search(line)]
    parts = [f"= {title} =\n\n"]
    headings: list[str] = []  # that wait for their text
    for line in lines:
        if HEADING.fullmatch(line):
            headings = [heading for heading in headings if heading not in EMPTY] + [line.removesuffix(".")]
            continue
        if headings:
            parts.append("\n")
        for depth, heading in enumerate(headings[-3:], 2):
            parts.append(f"{'=' * depth} {heading} {'=' * depth}\n\n")
        headings = []
        parts.append(f"{line}\n")
    return "".join(parts).rstrip("\n")


def typeset(text: str) -> str:
    """Straight quotes made curly: one after a blank, a dash or a bracket opens, every other closes."""
    for straight, opening, closing in (('"', "“", "”"), ("'", "‘", "’")):
        text = re.sub(rf"(?<![^\s(\[—–“-]){straight}", opening, text).replace(straight, closing)
    return text


def has_curly(title: str) -> bool:
    return hashlib.blake2b(title.encode(), digest_size=4).digest()[0] % CURLY == 0


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
        for paragraph in re.split(r"(\n+)", text):
            if len(paragraph) >= LONG:
                letters = "".join(filter(str.isalnum, paragraph.lower()))
                key = hashlib.blake2b(letters.encode(), digest_size=8).digest()
                if key in self.seen:
                    continue
                self.seen.add(key)
            kept.append(paragraph)
        return re.sub(r"\n{3,}", "\n\n", "".join(kept))


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
                if source != "wiki" and has_curly(document["title"]):
                    kept = typeset(kept)
                    counts[f"{source} documents with curly quotes"] += 1
                counts[f"{source} characters written"] += len(kept)
                line = json.dumps({"text": kept, "title": document["title"]}, ensure_ascii=False)
                out.write(line.encode() + b"\n")
    (arguments.out / "clean.json").write_text(json.dumps(dict(sorted(counts.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()
