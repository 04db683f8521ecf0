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

from glassgpt.backends.torch.backend import load_model
from glassgpt.train.forward import LossModule, StepConfig
from glassgpt.train.layers import float8
from glassgpt.train.objectives import loss
from glassgpt.train.objectives.objective import LanguageModeling
from glassgpt.weights import load_checkpoint
from glassgpt.weights.checkpoint import Checkpoint

ROWS, CONTEXT = 4, 256


def exact_product(
    a: float8.Scaled, b: float8.Scaled, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    out = (a[0].float() * a[1]) @ (b[0].float() * b[1]).t()
    return (out if bias is None else out + bias.float()).to(dtype)


def cross_entropy_with_grad(
    logits: Tensor, targets: Tensor, vocab_size: int, dlogits8: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`loss_kernel.cross_entropy_with_grad` for a CPU."""
    total, dlogits = loss.cross_entropy_with_grad(logits, targets, vocab_size)
    if dlogits8 is not None:
        dlogits8.copy_((dlogits.float() * float8.DLOGITS_SCALE).to(dlogits8.dtype))
    return total, dlogits


def loss_and_gradients(
    checkpoint: Checkpoint, ids: Tensor, config: StepConfig, objective: LanguageModeling, projections8: bool
) -> tuple[float, dict[str, Tensor]]:
    """The loss per token and the gradients of the blocks' matrices."""
    model = load_model(checkpoint, device="cpu", dtype="float32").requires_grad_(True).eval()
    if projections8:
        float8.apply_float8(model)
    targets = ids[:, 1:]
    mask = torch.ones_like(targets, dtype=torch.bool)
    total, _ = LossModule(model, objective, config)(ids[:, :-1], targets, mask)
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
    float8.scaled_mm = exact_product
    half, plain = StepConfig(torch.bfloat16), LanguageModeling()
    variants = {
        "float32": (StepConfig(), plain, False),
        "bfloat16": (half, plain, False),
        "float8 projections": (half, plain, True),
        "float8 projections and head": (half, LanguageModeling(cross_entropy_with_grad, True), True),
    }
    first, exact = loss_and_gradients(checkpoint, ids, *variants["float32"])
    print(f"{'':28} loss - float32's   cosine of gradients, least and mean")
    for name, variant in variants.items():
        value, found = loss_and_gradients(checkpoint, ids, *variant)
        alike = [cosine_similarity(found[n].flatten(), exact[n].flatten(), 0).item() for n in exact]
        print(f"{name:28} {value - first:+.4f}            {min(alike):.4f}  {sum(alike) / len(alike):.4f}")


if __name__ == "__main__":
    main()
