"""The two steps whose settings are in config.json: the vocabulary and the training.

    python recipes/default/make.py tokenizer clean/ -o tokenizer/
    python recipes/default/make.py train default --data shards/ --out runs/default

A training that was stopped goes on when its command is given again. What stands behind these flags (such as
--device cpu) goes to `glassgpt train` as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from glassgpt.cli import main as glassgpt
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.checkpoint.run_folder import list_checkpoints

CONFIG = Path(__file__).with_name("config.json")


def make_tokenizer(config: dict[str, Any], clean: Path, out: Path) -> None:
    files = [file for name in config["vocabulary_from"] for file in sorted(clean.glob(f"{name}.jsonl*"))]
    Tokenizer.train(files, config["vocab_size"]).save(out)


def training_command(settings: dict[str, Any], data: Path, out: Path) -> list[str]:
    """The command line of `glassgpt train`; it says what to do with a setting it does not know."""
    words = ["train", "--data", str(data), "--out", str(out)]
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if not isinstance(value, bool):
            words += [flag, str(value)]
        elif value:
            words.append(flag)
    return [*words, "--resume"] if list_checkpoints(out) else words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    steps = parser.add_subparsers(dest="step", required=True)
    tokenizer = steps.add_parser("tokenizer")
    tokenizer.add_argument("clean", type=Path)
    tokenizer.add_argument("-o", "--out", type=Path, required=True)
    train = steps.add_parser("train")
    train.add_argument("model")
    train.add_argument("--data", type=Path, required=True)
    train.add_argument("--out", type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    config = json.loads(arguments.config.read_text("utf-8"))
    if arguments.step == "tokenizer":
        make_tokenizer(config, arguments.clean, arguments.out)
        return 0
    settings = config["models"][arguments.model]
    return glassgpt([*training_command(settings, arguments.data, arguments.out), *rest])


if __name__ == "__main__":
    sys.exit(main())
