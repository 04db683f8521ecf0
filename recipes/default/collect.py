"""Collect the second edition's text: read public repositories, clean, drop duplicates and leaks.

    python recipes/default/collect.py encyclopedia --mirror MIRROR --first CORPUS --eval EVAL -o text/
    python recipes/default/collect.py books --mirror MIRROR --first CORPUS --eval EVAL -o text/

MIRROR has the repositories as `owner+name`. For every source a .jsonl (source, title, text), and GROUP.json,
which counts what was read, kept and dropped, and names every document dropped as a leak. The two groups may
run at once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import clean
from corpus.books import EMPHASIS
from corpus.repository import Repository
from corpus.runs import EvaluationTexts, SeenRuns, evaluation_texts, is_english, leaked_from, word_hashes
from corpus.sources import SOURCES, Source
from rich.progress import track

DUPLICATE = 0.3  # the part of a document's runs that were seen before
NEW = 0.2  # a paragraph of another revision is new if less than this part of its runs was seen
CURLY = 5  # every fifth book has curly quotes
FIRST = {"encyclopedia": ("wiki", "wiki-*.jsonl.xz"), "books": ("books", "books-*.jsonl.xz")}
LONG = 80


def key(title: str) -> str:
    return re.sub(r"[^a-z0-9]", "", title.lower())


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


class Collector:
    """One group's documents, in the sources' order: each is kept, or counted with the reason why not."""

    def __init__(self, out: Path, evaluation: EvaluationTexts) -> None:
        self.out, self.evaluation = out, evaluation
        self.seen, self.titles, self.paragraphs = SeenRuns(), set[str](), set[int]()
        self.counts: dict[str, Counter[str]] = {}
        self.leaks: list[dict[str, object]] = []
        self.leaked_titles: set[str] = set()

    def once(self, text: str) -> str:
        """The text without long paragraphs that are in an earlier document word for word."""
        kept = []
        for paragraph in text.split("\n"):
            if len(paragraph) >= LONG:
                number = digest(paragraph)
                if number in self.paragraphs:
                    continue
                self.paragraphs.add(number)
            kept.append(paragraph)
        return tidy_gaps("\n".join(kept))

    def add(self, source: str, title: str, text: str, least: int, *, titles: bool, file: IO[str]) -> str:
        """Keep a document or say why not."""
        if len(text) < least:
            return "short"
        if titles and key(title) in self.titles:
            return "title"
        words = word_hashes(text)
        if not is_english(words):
            return "other language"
        sample = self.seen.sample(words)
        if self.seen.share(sample) > DUPLICATE:
            return "duplicate"
        shared = self.evaluation.shared(words)
        leaks = leaked_from(shared)
        if leaks:
            self.leaks.append({"source": source, "title": title, "runs": shared, "words": len(words)})
            self.leaked_titles.add(key(title))
            return f"leak {leaks[0]}"
        if shared:
            text = tidy_gaps(self.evaluation.without(text))
            self.counts[source]["documents with a leaking paragraph cut out"] += 1
        text = self.once(text)
        if len(text) < least:
            return "short"
        self.seen.add(sample)
        if titles:
            self.titles.add(key(title))
        file.write(json.dumps({"source": source, "title": title, "text": text}, ensure_ascii=False) + "\n")
        self.counts[source]["characters kept"] += len(text)
        self.counts[source]["bytes kept"] += len(text.encode("utf-8", "replace"))
        self.counts[source]["words kept"] += len(words)
        return "kept"

    def new_paragraphs(self, text: str) -> str:
        """Of another revision of an article: its headings, and the paragraphs that are new."""
        kept = []
        for line in text.split("\n"):
            if not line or line[0] == "=":
                kept.append(line)
            elif len(line) >= 200:
                sample = self.seen.sample(word_hashes(line))
                if len(sample) and self.seen.share(sample) <= NEW:
                    kept.append(line)
        return tidy_gaps("\n".join(kept))


def tidy_gaps(text: str) -> str:
    """After lines were cut out: no heading without text, no more than one empty line."""
    lines = re.sub(r"\n{3,}", "\n\n", text).strip("\n").split("\n")
    kept: list[str] = []
    following = 0  # depth of the heading below; 0: text
    for line in reversed(lines):
        depth = len(line) - len(line.lstrip("=")) if line.startswith("==") and line.endswith("==") else 0
        if depth and ((following and depth >= following) or not any(kept)):
            continue
        if line:
            following = depth
        kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(reversed(kept))).strip("\n")


def first_edition(folder: Path, group: str) -> Iterator[tuple[str, str]]:
    source, pattern = FIRST[group]
    for file in sorted(folder.glob(pattern)):
        for document in clean.documents(file):
            text = clean.cleaned(document["text"], source)
            title = document["title"] if source == "wiki" else f"{document['title']} / {document['author']}"
            yield title, text if source == "wiki" else EMPHASIS.sub("", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("group", choices=sorted(FIRST))
    parser.add_argument("--mirror", type=Path, required=True, help="folder with the repositories")
    parser.add_argument("--first", type=Path, help="folder with the first edition's texts")
    parser.add_argument("--eval", type=Path, required=True, help="folder with the evaluation texts")
    parser.add_argument("--cbt", type=Path, help="test books of the Children's Book Test, .xz")
    parser.add_argument("--only", nargs="*", help="read these sources only")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    evaluation = evaluation_texts(given.eval, given.cbt)
    collector = Collector(given.out, evaluation)
    sources = [source for source in SOURCES if source.group == given.group]
    if given.only is not None:
        sources = [source for source in sources if source.name in given.only]
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=given.out) as revisions:
        if given.first is not None:
            name = f"first_{given.group}"
            with (given.out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                collect(
                    collector,
                    name,
                    first_edition(given.first, given.group),
                    None,
                    given.group,
                    file,
                    revisions,
                )
        written = set()
        for source in sources:
            mode = "a" if source.name in written else "w"
            written.add(source.name)
            with (given.out / f"{source.name}.jsonl").open(mode, encoding="utf-8") as file:
                documents = source.read(Repository(given.mirror, source.repository, source.commit))
                collect(collector, source.name, documents, source, given.group, file, revisions)
        if given.group == "encyclopedia":
            revisions.seek(0)
            with (given.out / "revised.jsonl").open("w", encoding="utf-8") as file:
                collect(collector, "revised", revised(collector, revisions), None, given.group, file, None)
    report = {
        "evaluation runs": {name: len(runs) for name, runs in evaluation.runs.items()},
        "sources": {name: dict(sorted(counts.items())) for name, counts in collector.counts.items()},
        "leaks": sorted(collector.leaks, key=lambda leak: (str(leak["source"]), str(leak["title"]))),
    }
    (given.out / f"{given.group}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def revised(collector: Collector, revisions: IO[str]) -> Iterator[tuple[str, str]]:
    for line in revisions:
        document = json.loads(line)
        if key(document["title"]) not in collector.leaked_titles:
            yield document["title"], collector.new_paragraphs(document["text"])


def collect(
    collector: Collector,
    name: str,
    documents: Iterator[tuple[str, str]],
    source: Source | None,
    group: str,
    file: IO[str],
    revisions: IO[str] | None,
) -> None:
    counts = collector.counts.setdefault(name, Counter())
    least = 1500 if name == "revised" else source.least if source is not None else 400
    titles = group == "encyclopedia" and name != "revised" and (source is None or source.titles)
    for title, text in track(documents, name, total=None):
        counts["read"] += 1
        counts["characters read"] += len(text)
        if group == "books" and digest(title) % CURLY == 0:
            text = clean.typeset(text)
        outcome = collector.add(name, title, text, least, titles=titles, file=file)
        counts[outcome] += 1
        if (
            outcome == "title"
            and source is not None
            and source.revisions
            and revisions is not None
            and len(text) > 2000
        ):
            revisions.write(json.dumps({"title": title, "text": text}) + "\n")
    print(name, json.dumps(dict(sorted(counts.items()))), flush=True)


if __name__ == "__main__":
    main()
