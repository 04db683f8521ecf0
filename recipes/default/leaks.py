"""Count what texts share with the evaluation texts: runs of 13 words, document by document.

    python recipes/default/leaks.py text/*.jsonl --eval EVAL --cbt CBT -o leaks.json
    python recipes/default/leaks.py CORPUS/*.jsonl.xz --eval EVAL --cbt CBT -o first.json

For every file: its documents, how many of them share a run with each evaluation text, the most runs one of
them shares, and the titles of those over the limit of `collect.py`.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from corpus.runs import EvaluationTexts, evaluation_texts, leaked_from, word_hashes
from rich.progress import track


def shared_in(file: Path, evaluation: EvaluationTexts) -> dict[str, Any]:
    documents, most = Counter[str](), Counter[str]()
    over: list[str] = []
    open_text = lzma.open if file.suffix == ".xz" else open
    with open_text(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            documents["documents"] += 1
            shared = evaluation.shared(word_hashes(document["text"]))
            for name, count in shared.items():
                documents[name] += 1
                most[name] = max(most[name], count)
            if leaked_from(shared):
                over.append(document["title"])
    return {
        "shared by": dict(sorted(documents.items())),
        "most runs": dict(sorted(most.items())),
        "over": over,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--eval", type=Path, required=True, help="folder with the evaluation texts")
    parser.add_argument("--cbt", type=Path, help="test books of the Children's Book Test, .xz")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    count = partial(shared_in, evaluation=evaluation_texts(given.eval, given.cbt))
    with ProcessPoolExecutor(given.workers) as pool:
        found = list(track(pool.map(count, given.files), "comparing", total=len(given.files)))
    report = {file.name: counts for file, counts in zip(given.files, found, strict=True)}
    given.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"{given.out}: {sum(len(counts['over']) for counts in found)} documents over the limit")


if __name__ == "__main__":
    main()
