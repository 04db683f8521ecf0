"""Translate forty everyday sentences, to be read by eye, as a table of Markdown.

    python recipes/translation/everyday.py runs/en-fr/model
    python recipes/translation/everyday.py en-fr --sentences recipes/translation/everyday-unseen.tsv

Eleven of the first forty are also sentences of Tatoeba that were trained on; of the second forty, which are
longer, none is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import glassgpt

SENTENCES = Path(__file__).with_name("everyday.tsv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--sentences", type=Path, default=SENTENCES)
    given = parser.parse_args()
    gpt = glassgpt.load(given.model)
    rows = [line.split("\t") for line in given.sentences.read_text("utf-8").splitlines()]
    print("| | translated |\n| --- | --- |")
    for language, sentence in rows:
        found = gpt.translate(sentence, to="fr" if language == "en" else "en", beams=given.beams)
        print(f"| {sentence} | {found} |")


if __name__ == "__main__":
    main()
