"""Relative attention's kernels on a GPU beside plain causal attention, and beside the definition.

python benchmarks/relative_attention.py [--batch 32 --heads 8 --context 2048 --width 64]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.model.relative_kernel import relative_attention


def naive(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """The definition, with every pair's row of the table written out: O(T^2 D) memory."""
    position = torch.arange(q.shape[2], device=q.device)
    distance = position[:, None] - position
    rows = table[:, distance.clamp(0, table.shape[1] - 1)]  # (H, T, T, D)
    scores = (q @ k.mT + torch.einsum("bhtd,htsd->bhts", q, rows)) * q.shape[-1] ** -0.5
    return scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v


def inputs(batch: int, heads: int, context: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(1)
    qkv = [torch.randn(batch, context, heads, width, device="cuda").transpose(1, 2) for _ in range(3)]
    table = torch.randn(heads, context, width, device="cuda") * 0.3
    return [x.to(dtype).requires_grad_() for x in (*qkv, table)]


def milliseconds(run: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(10):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("batch", 32), ("heads", 8), ("context", 2048), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    for dtype in (torch.float32, torch.bfloat16):
        small = inputs(2, 2, 200, args.width, dtype)
        exact = [x.detach().double().requires_grad_() for x in small]
        out, expected = relative_attention(*small), naive(*exact)
        weight = torch.randn_like(out)
        pairs = [(out, expected)]
        pairs += zip(
            torch.autograd.grad(out, small, weight),
            torch.autograd.grad(expected, exact, weight.double()),
            strict=True,
        )
        worst = [f"{(a - b).abs().max().item() / b.abs().max().item():.1e}" for a, b in pairs]
        print(
            f"{dtype}: largest error of the output and of the gradients of q, k, v, table: {', '.join(worst)}"
        )
    q, k, v, table = inputs(args.batch, args.heads, args.context, args.width, torch.bfloat16)
    weight = torch.randn_like(q)
    ways: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "relative": lambda: relative_attention(q, k, v, table),
    }

    def forward_and_back(forward: Callable[[], Tensor]) -> None:
        torch.autograd.grad(forward(), [q, k, v, table], weight, allow_unused=True)

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(6):
        for name, forward in ways.items():
            times[name].append((milliseconds(forward), milliseconds(lambda f=forward: forward_and_back(f))))  # type: ignore[misc]
    for name, measured in times.items():
        forward_ms, both_ms = (statistics.median(column) for column in zip(*measured[1:], strict=True))
        print(f"{name:9} forward {forward_ms:7.3f} ms   forward and backward {both_ms:7.3f} ms")


if __name__ == "__main__":
    main()
