"""Emails with subject lines, article bodies with opening sections, abstracts with one line: as token ids.

    python recipes/summarisation/prepare.py SHARED/summarisation -o prepared/ --model default

Writes for each of aeslc, wiki and scitldr NAME.npz (train, valid and test examples in the model's vocabulary,
grown by the task's tokens) and NAME.test.jsonl, the test set as text, which `score.py` compares with.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from task_training import save_arrays

from glassgpt.tasks.definition import load_task
from glassgpt.tasks.encode import Encoder
from glassgpt.tasks.vocabulary import add_tokens
from glassgpt.train.data.task_batches import TaskBatches
from glassgpt.weights import load_tokenizer

SETS = {  # file, task, context
    "aeslc": ("aeslc.jsonl.xz", "subject", 512),
    "wiki": ("wiki-lead.jsonl.xz", "summarize", 1024),
    "scitldr": ("scitldr.jsonl.xz", "summarize", 512),
}
SPLITS = {"train": "train", "dev": "valid", "valid": "valid", "test": "test"}


def clean(text: str) -> str:
    """Lines without the white space around them, and no more than one empty line in a row."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).strip()


def read(file: Path) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {"train": [], "valid": [], "test": []}
    for line in lzma.decompress(file.read_bytes()).decode("utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        pair = {key: clean(record[key]) for key in ("document", "summary")}
        if all(pair.values()):
            found[SPLITS[record["split"]]].append(pair)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name, (file, task_name, context) in SETS.items():
        if not (given.data / file).exists():
            continue
        task = load_task(task_name)
        tokenizer = add_tokens(load_tokenizer(given.model), task.tokens)
        encoder = Encoder(task, tokenizer, context)
        sets = {}
        records = read(given.data / file)
        for split, pairs in records.items():
            pairs = pairs[: given.limit]
            sets[split] = TaskBatches.from_examples(
                [encoder.example(pair["document"], pair["summary"]) for pair in pairs]
            )
        save_arrays(given.out / f"{name}.npz", sets)
        lines = "".join(
            json.dumps(pair, ensure_ascii=False) + "\n" for pair in records["test"][: given.limit]
        )
        (given.out / f"{name}.test.jsonl").write_text(lines, "utf-8")
        print(name, {split: (len(one), len(one.flat)) for split, one in sets.items()})


if __name__ == "__main__":
    main()
