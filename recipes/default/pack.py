"""Pack trained weights into the package: int8 with a scale for each row, vocabulary, attribution.

    python recipes/default/pack.py runs/default --name default --shards shards/

The weights may be a training's folder, any model that `glassgpt convert` reads, or a folder of pieces that
carry.py cut. Held-out loss is measured before and after; a model that loses more than 0.5% of
its perplexity is refused.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
from pathlib import Path

import carry
import torch
from torch.nn.functional import cross_entropy

from glassgpt.backends.torch.backend import load_model
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import Shards
from glassgpt.weights import load_checkpoint, save_checkpoint
from glassgpt.weights.checkpoint import Checkpoint

SHIPPED = Path(__file__).resolve().parents[2] / "src" / "glassgpt" / "data"
ATTRIBUTION = "ATTRIBUTION.txt.gz"
MOST = 0.5  # percent of perplexity that packing may cost


def opened(weights: Path, scratch: Path) -> Checkpoint:
    if (weights / carry.INDEX).is_file():
        joined = carry.join(weights, scratch)
        weights = joined[0] if len(joined) == 1 else scratch
    return load_checkpoint(weights)


@torch.inference_mode()
def held_out_loss(checkpoint: Checkpoint, shards: Path, windows: int) -> float:
    """Mean loss per token of windows from all over the held-out text."""
    model = load_model(checkpoint, dtype="float32").eval()
    context = checkpoint.config.n_positions
    loader = Loader(Shards.open(shards, "val", checkpoint.tokenizer), context, 1, seed=0)
    total = 0.0
    for step in range(windows):
        ids = loader.batch(step).to(model.wte.weight.device)  # (1, T + 1)
        total += float(cross_entropy(model(ids[:, :-1])[0], ids[0, 1:]))
    return total / windows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--name", required=True, help="what glassgpt.load will call it")
    parser.add_argument("--shards", type=Path, required=True, help="the prepared text, and its vocabulary")
    parser.add_argument("--windows", type=int, default=64, help="held-out windows to compare on")
    parser.add_argument("--attribution", type=Path, help="the list that attribution.py wrote")
    parser.add_argument("-o", "--out", type=Path, default=SHIPPED)
    given = parser.parse_args()
    target = given.out / given.name
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = opened(given.weights, Path(scratch))
        checkpoint.tokenizer = Tokenizer.load(given.shards)
        before = held_out_loss(checkpoint, given.shards, given.windows)
        save_checkpoint(checkpoint, target, format="packed")
    for name in ("vocab.json", "merges.txt"):  # tokenizer.json says the same
        (target / name).unlink()
    if given.attribution is not None:
        shutil.copy(given.attribution, target / ATTRIBUTION)
    after = held_out_loss(load_checkpoint(target), given.shards, given.windows)
    cost = 100 * math.expm1(after - before)
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{target}: {size:,} bytes; held-out loss {before:.5f} before, {after:.5f} packed")
    print(f"packing costs {cost:.3f}% of the perplexity ({given.windows} windows)")
    if cost > MOST:
        shutil.rmtree(target)
        sys.exit(f"more than {MOST}% is too much: {target} was removed")


if __name__ == "__main__":
    main()
