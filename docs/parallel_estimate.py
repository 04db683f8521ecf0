"""What 1.5 billion parameters take on 8, 64 and 512 GPUs: the table in parallel.md.

    python docs/parallel_estimate.py

Arithmetic from figures measured on one H200; nothing here was run on more than one. Every assumption is a
name below: change it and look.
"""

from __future__ import annotations

from dataclasses import dataclass

# Measured on one H200 (docs/performance.md): bfloat16, compiled, GPT-2 XL with 16 rows in an update.
SMALL_TOKENS_PER_S, XL_TOKENS_PER_S = 540_000, 48_300
PEAK = 799e12  # operations/s of large bfloat16 products

# Assumed of the machines: 8 GPUs each, NVLink within (450 GB/s each way and GPU), and for each GPU a network
# card of 400 Gbit/s (50 GB/s). Of that, programs get:
REACHED = 0.8
MACHINE = 8
NVLINK, CARD = 450e9 * REACHED, 50e9 * REACHED  # bytes/s

ROWS, CONTEXT = 512, 1024  # GPT-2's batch: 524,288 tokens in an update
TEXT = {"10B tokens": 10e9, "300B tokens": 300e9}  # WebText's 40 GB once; what GPT-3 was shown


@dataclass(frozen=True)
class Shape:
    n_layer: int
    n_embd: int
    n_head: int
    vocab_size: int = 50_257

    @property
    def block(self) -> int:
        """Parameters: matrices of 12 C^2, their biases, two norms."""
        return 12 * self.n_embd**2 + 13 * self.n_embd

    @property
    def tables(self) -> int:
        """Parameters outside the blocks: words (also the head), positions, the last norm."""
        return (self.vocab_size + CONTEXT + 2) * self.n_embd

    @property
    def parameters(self) -> int:
        return self.n_layer * self.block + self.tables

    @property
    def operations(self) -> float:
        """For a token, forward and backward: 6 for each weight of a product, and attention to half the
        context on average (as `glassgpt train --dry-run` counts)."""
        products = self.n_layer * 12 * self.n_embd**2 + self.vocab_size * self.n_embd
        return 6.0 * (products + self.n_layer * CONTEXT * self.n_embd)


SMALL = Shape(12, 768, 12)
XL = Shape(48, 1600, 25)
EVEN = Shape(48, 1536, 24)  # 1.44 billion: XL's 25 heads cannot be shared by 8
SPEED = XL_TOKENS_PER_S * XL.operations  # operations/s of one GPU in training


@dataclass(frozen=True)
class Estimate:
    gpus: int
    plan: str
    model: float  # bytes on a GPU: weights, gradients, optimizer, and weights gathered for a while
    activations: float  # bytes
    travels: float  # bytes that a GPU sends in an update
    waiting: float  # seconds of sending that nothing else can be done in
    sending: float  # seconds of sending that can go on behind the computing
    computing: float  # seconds

    @property
    def seconds(self) -> tuple[float, float]:
        """Of an update: if all sending that can be hidden is, and if none is."""
        busy = self.computing + self.waiting
        return max(busy, self.sending), busy + self.sending


def estimate(gpus: int, plan: str, shape: Shape) -> Estimate:
    tensor = MACHINE if plan == "tp" else 1
    groups = gpus // tensor
    rows = ROWS // groups  # of a group, in an update
    micro = min(rows, 16 if plan != "tp" else 64)
    passes = rows // micro
    # 4 bytes each for a weight and its gradient, 8 for AdamW's memory of it. Half precision works on rounded
    # copies, 2 bytes: under ddp of all weights, else of two blocks and the tables at a time.
    held = shape.n_layer * shape.block / tensor + shape.tables
    rounded = held if plan == "ddp" else 2 * shape.block / tensor + shape.tables
    model = 16 * held / (1 if plan == "ddp" else groups) + 2 * rounded
    # A block keeps 18 C numbers for a token; a group has all but the inputs of its products in shares.
    kept = 2 + 16 / tensor
    activations = micro * CONTEXT * shape.n_layer * kept * shape.n_embd * 2

    # A ring sends (N - 1) / N of what it gathers or sums, and twice that of what all shall have the sum of.
    ring = (groups - 1) / groups
    if plan == "ddp":
        between = 2 * ring * 4 * held  # gradients, float32, once
    else:
        between = passes * ring * (2 * 2 + 4) * held  # weights twice (bfloat16), gradients (float32)
    # In a machine a ring runs over NVLink; between machines the 8 cards of each carry an eighth of it.
    speed = NVLINK if gpus <= MACHINE else CARD if plan == "tp" else min(NVLINK, MACHINE * CARD)
    # A group gathers before each of a block's two halves and sums after it, forward and backward: 8 times
    # (B, T, C) in bfloat16, in between its products.
    within = 0.0
    if tensor > 1:
        within = rows * CONTEXT * shape.n_layer * 8 * 2 * shape.n_embd * (tensor - 1) / tensor
    return Estimate(
        gpus, plan, model, activations, travels=between + within, waiting=within / NVLINK,
        sending=between / speed, computing=ROWS * CONTEXT * shape.operations / (gpus * SPEED),
    )  # fmt: skip


def table() -> str:
    head = ["GPUs", "`--parallel`", "model, GB", "activations, GB", "sends, GB", "sends, ms", "computes, ms",
            "tokens/s", *(f"{name}, hours" for name in TEXT)]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for gpus in (8, 64, 512):
        for plan, shape in (("ddp", XL), ("fsdp", XL), ("tp", EVEN)):
            e = estimate(gpus, plan, shape)
            best, worst = e.seconds
            rates = [ROWS * CONTEXT / seconds for seconds in (worst, best)]
            cells = [
                str(gpus), plan, *(f"{x / 1e9:.1f}" for x in (e.model, e.activations, e.travels)),
                f"{1e3 * (e.waiting + e.sending):.0f}", f"{1e3 * e.computing:.0f}",
                " to ".join(f"{rate / 1e6:.2f} M" for rate in rates),
                *(" to ".join(hours(tokens / rate) for rate in reversed(rates)) for tokens in TEXT.values()),
            ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}" if seconds < 36_000 else f"{seconds / 3600:,.0f}"


def said(tokens_per_s: int, shape: Shape) -> str:
    speed = tokens_per_s * shape.operations
    share = f"{speed / 1e12:.0f} TFLOP/s, {speed / PEAK:.0%} of the measured peak."
    return f"so {tokens_per_s:,} tokens/s are {share}"


def summary() -> str:
    return "\n".join(
        [
            f"- GPT-2 small: {SMALL.operations / 1e9:.3f} GFLOP a token, {said(SMALL_TOKENS_PER_S, SMALL)}",
            f"- GPT-2 XL: {XL.parameters:,} parameters, {XL.operations / 1e9:.2f} GFLOP a token, "
            + said(XL_TOKENS_PER_S, XL),
            f"- 48x1536x24, for tp: {EVEN.parameters:,} parameters, {EVEN.operations / 1e9:.2f} GFLOP a "
            "token.",
        ]
    )


if __name__ == "__main__":
    print(summary(), table(), sep="\n\n")
