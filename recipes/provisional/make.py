"""Make the provisional shipped model on a CPU: tokenizer, tokens, training, packing.

    python recipes/provisional/make.py BOOKS.jsonl.xz ... --out runs/provisional

A step that is done is not done again, and training goes on from its last save, so the command may be stopped
and repeated. Training on two cores takes under an hour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.loop import train
from glassgpt.train.settings import TrainSettings
from glassgpt.weights import load_checkpoint, save_checkpoint
from glassgpt.weights.safe import writing

SEED = 1
SHAPE = {"n_positions": 256, "n_embd": 192, "n_layer": 4, "n_head": 6}
NO_DROPOUT = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}  # less than one pass over the text
SETTINGS = TrainSettings(
    steps=3000, rows=16, context=256, lr=3e-3, muon_lr=0.02, warmup=100, precision="bfloat16", seed=SEED,
    eval_every=250, eval_rows=128, save_every=100,
)  # fmt: skip


def make_tokenizer(books: list[Path], out: Path) -> Tokenizer:
    if not (out / "tokenizer.json").exists():
        Tokenizer.train(books[:2], 4096, max_bytes=60_000_000).save(out)
    return Tokenizer.load(out)


class Windows:
    """Windows from places drawn for (seed, step): a run that was stopped goes on with the same ones."""

    def __init__(self, ids: np.ndarray, seed: int) -> None:
        self.ids = ids
        self.seed = seed

    def batch(self, step: int) -> torch.Tensor:
        draw = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        starts = draw.integers(0, len(self.ids) - SETTINGS.context, SETTINGS.rows)
        windows = np.stack([self.ids[s : s + SETTINGS.context + 1] for s in starts])
        return torch.from_numpy(windows.astype(np.int64))


def make_tokens(books: list[Path], tokenizer: Tokenizer, file: Path) -> np.ndarray:
    """All books as one row of ids with <|endoftext|> after each."""
    if not file.exists():
        with writing(file) as part, part.open("wb") as target, Progress() as progress:
            for book_file in progress.track(books, description="encoding"):
                with lzma.open(book_file, "rt", encoding="utf-8") as lines:
                    for line in lines:
                        ids = tokenizer.encode(json.loads(line)["text"])
                        np.array([*ids, tokenizer.eot_id], np.uint16).tofile(target)
    return np.memmap(file, np.uint16, mode="r")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("books", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/provisional"))
    parser.add_argument("--ship", type=Path, default=Path("src/glassgpt/data/default"))
    arguments = parser.parse_args()

    tokenizer = make_tokenizer(arguments.books, arguments.out)
    tokens = make_tokens(arguments.books, tokenizer, arguments.out / "tokens.bin")
    cut = int(len(tokens) * 0.99)
    data, last = Windows(tokens[:cut], SEED), Windows(tokens[cut:], 2**32 - 1)
    held_out = [last.batch(i) for i in range(0, SETTINGS.eval_rows, SETTINGS.rows)]
    torch.manual_seed(SEED)
    eot = tokenizer.eot_id
    model = GPT2(
        Config(vocab_size=tokenizer.vocab_size, bos_token_id=eot, eos_token_id=eot, **SHAPE, **NO_DROPOUT)
    )
    with Progress() as progress:
        bar = progress.add_task("training", total=SETTINGS.steps)
        batches = lambda step: map(data.batch, itertools.count(step))  # noqa: E731
        for record in train(model, batches, held_out, arguments.out, SETTINGS):
            progress.update(bar, completed=record["step"], description=f"training, loss {record['loss']:.3f}")
            if "val_loss" in record:
                progress.print(record)
    save_checkpoint(load_checkpoint(str(arguments.out)), arguments.ship, format="packed")


if __name__ == "__main__":
    main()
