"""SST-2 as token ids, by GPT-1's scheme: start, text, extract token.

    python recipes/classification/prepare.py SHARED/classification -o prepared/ --model default

The sentences come tokenized ("it 's a charming journey ."); they are written as the model knows text.
"""

from __future__ import annotations

import argparse
import lzma
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from task_training import save_arrays

from glassgpt.tasks.definition import load_task
from glassgpt.tasks.encode import Encoder
from glassgpt.tasks.vocabulary import add_tokens
from glassgpt.train.data.task_batches import TaskBatches
from glassgpt.weights import load_tokenizer

FILES = {"train": "sst2.train.tsv.xz", "valid": "sst2.dev.tsv.xz", "test": "sst2.test-labeled.tsv.xz"}
CONTEXT = 256


def detokenize(text: str) -> str:
    text = text.strip().replace("-lrb-", "(").replace("-rrb-", ")").replace("``", '"').replace("''", '"')
    text = re.sub(r" (n't|'s|'re|'ve|'ll|'d|'m|')(?= |$)", r"\1", text)
    return re.sub(r" ([.,;:!?)])", r"\1", text).replace("( ", "(").replace(" ...", "...")


def read(file: Path) -> list[tuple[str, str]]:
    """Sentences with their labels, by name."""
    lines = lzma.decompress(file.read_bytes()).decode("utf-8").splitlines()[1:]
    rows = (line.rsplit("\t", 1) for line in lines)
    return [(detokenize(text), load_task("sentiment").labels[int(label)]) for text, label in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--model", default="default")
    given = parser.parse_args()
    task = load_task("sentiment")
    encoder = Encoder(task, add_tokens(load_tokenizer(given.model), task.tokens), CONTEXT)
    sets = {
        split: TaskBatches.from_examples([encoder.example(*row) for row in read(given.data / name)])
        for split, name in FILES.items()
    }
    save_arrays(given.out / "sst2.npz", sets)
    print({split: (len(one), len(one.flat), int(one.lengths.max())) for split, one in sets.items()})


if __name__ == "__main__":
    main()
