"""List whose texts the models learned from: books by title and author, articles by title.

python recipes/default/attribution.py CORPUS/books-*.jsonl.xz CORPUS/wiki-*.jsonl.xz -o ATTRIBUTION.txt.gz
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from clean import documents

HEAD = """The texts that GlassGPT's shipped models learned from.

BOOKS, all in the public domain: title, author, year.

"""
MIDDLE = """

ENCYCLOPEDIA, the following articles of the English Wikipedia as of 2015, by Wikipedia contributors, under the
Creative Commons Attribution-ShareAlike 3.0 licence (https://creativecommons.org/licenses/by-sa/3.0/). The
history of an article names its authors: https://en.wikipedia.org/w/index.php?title=TITLE&action=history

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    books, articles = set(), set()
    for file in given.files:
        for document in documents(file):
            if document["source"] == "books":
                books.add(f"{document['title']}, {document['author']}, {document['year']}")
            else:
                articles.add(document["title"])
    text = HEAD + "\n".join(sorted(books)) + MIDDLE + "\n".join(sorted(articles)) + "\n"
    given.out.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
    print(f"{given.out}: {len(books)} books, {len(articles)} articles, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
