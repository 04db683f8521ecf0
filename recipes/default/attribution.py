"""List whose texts the models learned from: every source with its license, every title.

    python recipes/default/attribution.py text/ -o ATTRIBUTION.txt.gz

TEXT is the folder that `collect.py` wrote.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from corpus.sources import SOURCES, WIKIPEDIA

HEAD = """The texts that GlassGPT's shipped models learned from, by source:
where it was taken from, its license, its titles.

Articles of Wikipedia are by Wikipedia contributors, under the Creative Commons Attribution-ShareAlike 3.0
license (https://creativecommons.org/licenses/by-sa/3.0/). The history of an article names its authors:
https://en.wikipedia.org/w/index.php?title=TITLE&action=history
CC BY 4.0: https://creativecommons.org/licenses/by/4.0/. All texts were shortened and cleaned.
"""
FIRST = {
    "first_books": "Classic English books, in the public domain: title / author",
    "first_encyclopedia": f"The English Wikipedia as of 2015. {WIKIPEDIA}",
    "revised": f"Paragraphs of other revisions of Wikipedia's articles, from the sources above. {WIKIPEDIA}",
}


def about(name: str) -> str:
    if name in FIRST:
        return FIRST[name]
    found = [source for source in SOURCES if source.name == name]
    if not found:
        raise SystemExit(f"{name}.jsonl: no source of that name; move the file out of the folder")
    repositories = ", ".join(
        f"https://github.com/{source.repository}@{source.commit[:8]}" for source in found
    )
    return f"{repositories}. {found[0].license}"


def titles(file: Path) -> list[str]:
    with file.open(encoding="utf-8") as lines:
        found = {json.loads(line)["title"] for line in lines}
    if file.stem == "frus":  # papers: 15,000 letters of the same few people
        found = {title.partition(":")[0] for title in found}
    return sorted(" ".join(title.split()) for title in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    files = sorted(given.text.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{given.text}: no .jsonl there; run recipes/default/collect.py first")
    parts, count = [HEAD], 0
    for file in files:
        listed = titles(file)
        count += len(listed)
        parts.append(f"\n{file.stem.upper()}\n{about(file.stem)}\n\n" + "\n".join(listed) + "\n")
    given.out.write_bytes(gzip.compress("".join(parts).encode("utf-8", "replace"), mtime=0))
    print(f"{given.out}: {len(files)} sources, {count:,} titles, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
