"""Relative attention's kernels on a GPU beside plain causal attention, and beside the definition.

python benchmarks/relative_attention.py [--batch 32 --heads 8 --context 2048 --width 64]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.model.variants.relative_kernel import relative_attention
from glassgpt.train.distributed.parallelize import parallelize
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.micro_batch import AutoMicroBatch
from glassgpt.train.objectives.objective import Batch
from glassgpt.train.optim import make_optimizers
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import train_step

ATTENTIONS = {"plain": "causal", "relative": "relative"}  # as in Config.attention


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


def trainer_step(attention: str, args: argparse.Namespace) -> Callable[[], object]:
    """One step of training on random events, compiled, in bfloat16."""
    with torch.device("cuda"):
        model = GPT2(
            Config(
                vocab_size=389, n_positions=args.context, n_embd=args.heads * args.width, n_layer=6,
                n_head=args.heads, attention=attention, embd_pdrop=0.1, resid_pdrop=0.1, attn_pdrop=0.0,
            )
        )  # fmt: skip
    settings = TrainSettings(
        steps=1,
        compile=True,
        precision="bfloat16",
        batch_size=args.batch,
        context=args.context,
        optimizer="muon",
    )
    optimizers = make_optimizers(model, settings)
    loss_module = parallelize(model, settings)
    batch = Batch.from_tokens(torch.randint(0, 389, (args.batch, args.context + 1), device="cuda"))
    scaler, micro_batch, group = (
        torch.amp.GradScaler("cuda", enabled=False),
        AutoMicroBatch(settings),
        ProcessGroup(),
    )
    return lambda: train_step(batch, loss_module, optimizers, scaler, micro_batch, group)


def compare_with_definition(args: argparse.Namespace) -> None:
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


def compare_kernels(args: argparse.Namespace) -> None:
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


def compare_training(args: argparse.Namespace) -> None:
    steps = {name: trainer_step(attention, args) for name, attention in ATTENTIONS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(6):
        for name, step in steps.items():
            step()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(10):
                step()
            torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - begun) / 10)
    for name, measured in seconds.items():
        median = statistics.median(measured[1:])
        events = args.batch * args.context
        print(f"{name:9} trains {events / median:,.0f} events/s ({median * 1e3:.1f} ms a step of {events:,})")
    ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
    print(f"relative takes {ratio:.2f} times as long as plain")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("batch", 32), ("heads", 8), ("context", 2048), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    compare_with_definition(args)
    compare_kernels(args)
    compare_training(args)


if __name__ == "__main__":
    main()
