"""ROUGE of what `train.py` wrote, next to summaries that any program can write.

    python recipes/summarisation/score.py runs/subject aeslc prepared/aeslc.test.jsonl

Prints a table and one JSON line, and writes OUT/NAME.scores.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from baselines import KINDS, baselines

from glassgpt.evaluate.generated import rouge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("test", type=Path)
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    pairs = [json.loads(line) for line in given.test.read_text("utf-8").splitlines()][: given.limit]
    references = [pair["summary"] for pair in pairs]
    scores: dict[str, dict[str, float]] = {}
    for file in sorted(given.run.glob(f"{given.name}.*.txt")):
        texts = file.read_text("utf-8").splitlines()[: given.limit]
        kind = file.name.split(".")[1]
        scores[f"{kind} ({len(texts)})"] = rouge(texts, references[: len(texts)], KINDS)
    scores |= baselines([pair["document"] for pair in pairs], references)
    for name, found in scores.items():
        print(f"{name:20} " + "   ".join(f"{kind} {found[kind]:5.2f}" for kind in KINDS))
    print(json.dumps(scores))
    (given.run / f"{given.name}.scores.json").write_text(json.dumps(scores, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
