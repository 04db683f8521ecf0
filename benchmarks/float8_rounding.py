"""What rounding to float8 costs by itself: loss and gradients of one batch, beside float32, on a CPU.

    python benchmarks/float8_rounding.py --model default --text README.md

The products are exact here (a GPU's also add up coarsely), so what differs is the rounding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from glassgpt.model import load_model
from glassgpt.train import float8, loss
from glassgpt.train.step import Way, summed_loss
from glassgpt.weights import load_checkpoint
from glassgpt.weights.checkpoint import Checkpoint

ROWS, CONTEXT = 4, 256


def exact_product(
    a: float8.Narrow, b: float8.Narrow, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    out = (a[0].float() * a[1]) @ (b[0].float() * b[1]).t()
    return (out if bias is None else out + bias.float()).to(dtype)


def judge(
    logits: Tensor, targets: Tensor, vocabulary: int, gradient8: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`loss_kernel.judge` for a CPU."""
    total, pull = loss.judge(logits, targets, vocabulary)
    if gradient8 is not None:
        gradient8.copy_((pull.float() * float8.LOGIT_STRETCH).to(gradient8.dtype))
    return total, pull


def learned(checkpoint: Checkpoint, ids: Tensor, way: Way, narrow: bool) -> tuple[float, dict[str, Tensor]]:
    """The loss per token and the gradients of the blocks' matrices."""
    model = load_model(checkpoint, device="cpu", dtype="float32").requires_grad_(True).eval()
    if narrow:
        float8.use_float8(model)
    total = summed_loss(model, ids[:, :-1], ids[:, 1:], way)
    total.backward()
    matrices = {name: p.grad for name, p in model.h.named_parameters() if p.ndim == 2 and p.grad is not None}
    return total.item() / ids[:, 1:].numel(), matrices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--text", type=Path, default=Path("README.md"))
    given = parser.parse_args()
    checkpoint = load_checkpoint(given.model)
    assert checkpoint.tokenizer is not None
    tokens = checkpoint.tokenizer.encode(given.text.read_text("utf-8"))
    rows = min(ROWS, len(tokens) // (CONTEXT + 1))
    if rows == 0:
        parser.error(f"{given.text} has {len(tokens)} tokens; {CONTEXT + 1} are the least")
    ids = torch.tensor(tokens[: rows * (CONTEXT + 1)]).view(rows, CONTEXT + 1)
    float8.product = exact_product
    half = torch.bfloat16
    ways = {
        "float32": (Way(), False),
        "bfloat16": (Way(half), False),
        "float8 projections": (Way(half), True),
        "float8 projections and head": (Way(half, judge=judge, float8_head=True), True),
    }
    first, exact = learned(checkpoint, ids, *ways["float32"])
    print(f"{'':28} loss - float32's   cosine of gradients, least and mean")
    for name, (way, narrow) in ways.items():
        value, found = learned(checkpoint, ids, way, narrow)
        alike = [cosine_similarity(found[n].flatten(), exact[n].flatten(), 0).item() for n in exact]
        print(f"{name:28} {value - first:+.4f}            {min(alike):.4f}  {sum(alike) / len(alike):.4f}")


if __name__ == "__main__":
    main()
