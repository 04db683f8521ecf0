"""A model of random numbers in a given shape, for measuring speed where there are no weights.

    python benchmarks/random_model.py small FOLDER [--tokenizer default]

`small` is GPT-2 small; `47M` has 12 blocks 512 wide and 16,384 tokens. The tokenizer is that of a model, or a
folder with one; its vocabulary may be smaller than the model's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.tokenizer import Tokenizer
from glassgpt.weights import Checkpoint, load_checkpoint, save_checkpoint

SHAPES: dict[str, dict[str, Any]] = {"small": {}, "47M": {"vocab_size": 16384, "n_embd": 512, "n_head": 8}}


def write_random(shape: str, folder: Path, tokenizer: str = "default") -> None:
    torch.manual_seed(0)
    config = Config(**SHAPES[shape])
    tensors = {key: values.numpy() for key, values in GPT2(config).state_dict().items()}
    found = Tokenizer.load(tokenizer) if Path(tokenizer).exists() else load_checkpoint(tokenizer).tokenizer
    save_checkpoint(Checkpoint(config, tensors, found), folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", default="default")
    args = parser.parse_args()
    write_random(args.shape, args.folder, args.tokenizer)


if __name__ == "__main__":
    main()
