"""Summarize a test set with a trained model; `score.py` computes ROUGE from what this writes.

    python recipes/summarisation/summarize.py summarize prepared/wiki.test.jsonl --out runs/shipped

Writes OUT/wiki.greedy.txt, a line for each pair, by the task's own decoding; with --beams 4 wiki.beam4.txt. A
model without a task, such as default, quotes three sentences of each text: wiki.extract.txt.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import glassgpt
from glassgpt.tasks.summarize import summarize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("test", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--beams", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device")
    given = parser.parse_args()
    gpt = glassgpt.load(given.model, device=given.device)
    documents = [json.loads(line)["document"] for line in given.test.read_text("utf-8").splitlines()]
    started = time.monotonic()
    beams = {} if given.beams is None else {"beams": given.beams}
    writes = gpt.task is not None
    settings = {"logprobs": None, **beams} if writes else beams
    made = summarize(gpt, documents[: given.limit], **settings)
    given.out.mkdir(parents=True, exist_ok=True)
    kind = "extract" if not writes else "greedy" if given.beams is None else f"beam{given.beams}"
    file = given.out / f"{given.test.name.split('.')[0]}.{kind}.txt"
    file.write_text("".join(" ".join(one.text.split()) + "\n" for one in made), "utf-8")
    print(f"{file.name}: {len(made)} summaries in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
