"""Translate forty everyday sentences, to be read by eye, as a table of Markdown.

python recipes/translation/everyday.py runs/en-fr/model
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
    given = parser.parse_args()
    gpt = glassgpt.load(given.model)
    rows = [line.split("\t") for line in SENTENCES.read_text("utf-8").splitlines()]
    print("| | translated |\n| --- | --- |")
    for language, sentence in rows:
        found = gpt.translate(sentence, to="fr" if language == "en" else "en", beams=given.beams)
        print(f"| {sentence} | {found} |")


if __name__ == "__main__":
    main()
