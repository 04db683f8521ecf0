"""BLEU and chrF (sacrebleu, cased, detokenized, with signatures) of what `translate.py` wrote.

    python recipes/translation/score.py runs/en-fr prepared/tatoeba.test.tsv

Prints a table and one JSON line, and writes OUT/scores.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sacrebleu.metrics import BLEU, CHRF


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("pairs", type=Path)
    given = parser.parse_args()
    rows = [line.split("\t") for line in given.pairs.read_text("utf-8").splitlines()]
    scores = {}
    for file in sorted(given.run.glob("to-*.txt")):
        to = file.name.split(".")[0].removeprefix("to-")
        texts = file.read_text("utf-8").splitlines()
        references = [row[1 if to == "fr" else 0] for row in rows[: len(texts)]]
        found = translation_scores(texts, references)
        scores[file.stem] = {"sentences": len(texts), **found}
        print(f"{file.stem}: {len(texts)} sentences, BLEU {found['bleu']:.1f}, chrF {found['chrf']:.1f}")
    print(json.dumps(scores))
    (given.run / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", "utf-8")


def translation_scores(texts: list[str], references: list[str]) -> dict[str, float | str]:
    """BLEU and chrF with sacrebleu's signatures, which say exactly how they were computed. chrF, of character
    n-grams, forgives another ending of a word."""
    scores: dict[str, float | str] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        scores[name] = float(metric.corpus_score(texts, [references]).score)
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores


if __name__ == "__main__":
    main()
