"""Translate a test set with a trained model; `score.py` computes BLEU and chrF from what this writes.

    python recipes/translation/translate.py runs/en-fr/model prepared/tatoeba.test.tsv --out runs/en-fr

Writes OUT/to-fr.greedy.txt and OUT/to-en.greedy.txt, or with --beams 4 .beam4.txt, a line for each pair.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import glassgpt
from glassgpt.tasks.definition import load_task
from glassgpt.tasks.generate import run_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--beams", type=int)
    parser.add_argument("--to", default="fr,en")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device")
    given = parser.parse_args()
    gpt = glassgpt.load(given.model, device=given.device)
    task = load_task("en-fr")
    rows = [line.split("\t") for line in given.pairs.read_text("utf-8").splitlines()][: given.limit]
    given.out.mkdir(parents=True, exist_ok=True)
    for to in given.to.split(","):
        sources = [row[0 if to == "fr" else 1] for row in rows]
        started = time.monotonic()
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        made = run_task(gpt, task, [sources[i] for i in order], to, beams=given.beams, logprobs=None)
        texts = dict(zip(order, (" ".join(output.text.split()) for output in made), strict=True))
        kind = "greedy" if given.beams is None else f"beam{given.beams}"
        (given.out / f"to-{to}.{kind}.txt").write_text(
            "".join(texts[i] + "\n" for i in range(len(sources))), "utf-8"
        )
        print(f"to {to}, {kind}: {len(sources)} sentences in {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
