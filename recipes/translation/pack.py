"""The trained model as the folder that ships: int8, one tokenizer file, its card.

python recipes/translation/pack.py runs/en-fr/model -o en-fr --card recipes/translation/en-fr.card.md
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from glassgpt.weights import load_checkpoint, save_checkpoint

DROPPED = ("vocab.json", "merges.txt")  # tokenizer.json has them, too


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--card", type=Path, required=True)
    given = parser.parse_args()
    if (given.model / "adapter.json").exists():
        shutil.copytree(given.model, given.out, dirs_exist_ok=True)
    else:
        save_checkpoint(load_checkpoint(given.model), given.out, "packed")
        for name in DROPPED:
            (given.out / name).unlink(missing_ok=True)
    shutil.copy(given.card, given.out / "MODEL_CARD.md")
    print(f"{sum(file.stat().st_size for file in given.out.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
