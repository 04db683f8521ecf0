"""Memory and time of training 1.5 billion parameters on 8, 64 and 512 GPUs: the table in parallel.md.

    python docs/parallel_estimate.py

Arithmetic from figures measured on one H200; nothing here was run on more than one. Every assumption is a
constant below.
"""

from __future__ import annotations

from dataclasses import dataclass

# Measured on one H200 (docs/performance.md): bfloat16, compiled, GPT-2 XL with a batch size of 16.
SMALL_TOKENS_PER_S, XL_TOKENS_PER_S = 540_000, 48_300
PEAK = 799e12  # FLOP/s of large bfloat16 products

# Assumed machines: 8 GPUs each, NVLink within (450 GB/s per GPU and direction), and for each GPU a network
# card of 400 Gbit/s (50 GB/s), used at this efficiency:
EFFICIENCY = 0.8
MACHINE = 8
NVLINK, CARD = 450e9 * EFFICIENCY, 50e9 * EFFICIENCY  # bytes/s

BATCH_SIZE, CONTEXT = 512, 1024  # GPT-2's batch: 524,288 tokens per update
TEXT = {"10B tokens": 10e9, "300B tokens": 300e9}  # WebText's 40 GB once; what GPT-3 was trained on


@dataclass(frozen=True)
class Shape:
    n_layer: int
    n_embd: int
    n_head: int
    vocab_size: int = 50_257

    @property
    def block(self) -> int:
        """Parameters of a block: matrices of 12 C^2, their biases, two norms."""
        return 12 * self.n_embd**2 + 13 * self.n_embd

    @property
    def tables(self) -> int:
        """Parameters outside the blocks: token embedding (also the head), positions, the final norm."""
        return (self.vocab_size + CONTEXT + 2) * self.n_embd

    @property
    def parameters(self) -> int:
        return self.n_layer * self.block + self.tables

    @property
    def operations(self) -> float:
        """FLOP per token, forward and backward: 6 for each weight of a matrix product, and attention over
        half the context on average (as `glassgpt train --dry-run` counts)."""
        products = self.n_layer * 12 * self.n_embd**2 + self.vocab_size * self.n_embd
        return 6.0 * (products + self.n_layer * CONTEXT * self.n_embd)


SMALL = Shape(12, 768, 12)
XL = Shape(48, 1600, 25)
EVEN = Shape(48, 1536, 24)  # 1.44 billion: XL's 25 heads cannot be divided by 8
SPEED = XL_TOKENS_PER_S * XL.operations  # FLOP/s of one GPU in training


@dataclass(frozen=True)
class Estimate:
    gpus: int
    strategy: str
    model: float  # bytes on a GPU: weights, gradients, optimizer state, and gathered weights
    activations: float  # bytes
    traffic: float  # bytes a GPU sends per update
    exposed: float  # seconds of communication that cannot overlap with computation
    overlappable: float  # seconds of communication that can
    compute: float  # seconds

    @property
    def seconds(self) -> tuple[float, float]:
        """Of an update: with full overlap, and with none."""
        busy = self.compute + self.exposed
        return max(busy, self.overlappable), busy + self.overlappable


def estimate(gpus: int, strategy: str, shape: Shape) -> Estimate:
    tensor = MACHINE if strategy == "tp" else 1
    groups = gpus // tensor
    local_batch = BATCH_SIZE // groups  # of a group
    micro = min(local_batch, 16 if strategy != "tp" else 64)
    passes = local_batch // micro
    # 4 bytes each for a weight and its gradient, 8 for AdamW's state. Half precision needs copies of 2 bytes:
    # of all weights with ddp, otherwise of two blocks and the embeddings at a time.
    held = shape.n_layer * shape.block / tensor + shape.tables
    copied = held if strategy == "ddp" else 2 * shape.block / tensor + shape.tables
    model = 16 * held / (1 if strategy == "ddp" else groups) + 2 * copied
    # A block stores 18 C values per token; all but the inputs of its products are sharded over the group.
    stored = 2 + 16 / tensor
    activations = micro * CONTEXT * shape.n_layer * stored * shape.n_embd * 2

    # A ring sends (N - 1) / N of the data in an all-gather or reduce-scatter, twice that in an all-reduce.
    ring = (groups - 1) / groups
    if strategy == "ddp":
        between = 2 * ring * 4 * held  # gradients, float32, once
    else:
        between = passes * ring * (2 * 2 + 4) * held  # weights twice (bfloat16), gradients (float32)
    # Within a machine a ring runs over NVLink; between machines, each of the 8 cards carries an eighth of it.
    speed = NVLINK if gpus <= MACHINE else CARD if strategy == "tp" else min(NVLINK, MACHINE * CARD)
    # An all-gather before each half of a block and a reduce-scatter after it, forward and backward: 8 times
    # (B, T, C) in bfloat16, between its products.
    within = 0.0
    if tensor > 1:
        within = local_batch * CONTEXT * shape.n_layer * 8 * 2 * shape.n_embd * (tensor - 1) / tensor
    return Estimate(
        gpus, strategy, model, activations, traffic=between + within, exposed=within / NVLINK,
        overlappable=between / speed, compute=BATCH_SIZE * CONTEXT * shape.operations / (gpus * SPEED),
    )  # fmt: skip


def table() -> str:
    head = ["GPUs", "`--parallel`", "model, GB", "activations, GB", "sends, GB", "sends, ms", "computes, ms",
            "tokens/s", *(f"{name}, hours" for name in TEXT)]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for gpus in (8, 64, 512):
        for strategy, shape in (("ddp", XL), ("fsdp", XL), ("tp", EVEN)):
            e = estimate(gpus, strategy, shape)
            best, worst = e.seconds
            rates = [BATCH_SIZE * CONTEXT / seconds for seconds in (worst, best)]
            cells = [
                str(gpus), strategy, *(f"{x / 1e9:.1f}" for x in (e.model, e.activations, e.traffic)),
                f"{1e3 * (e.exposed + e.overlappable):.0f}", f"{1e3 * e.compute:.0f}",
                " to ".join(f"{rate / 1e6:.2f} M" for rate in rates),
                *(" to ".join(hours(tokens / rate) for rate in reversed(rates)) for tokens in TEXT.values()),
            ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}" if seconds < 36_000 else f"{seconds / 3600:,.0f}"


def describe_speed(tokens_per_s: int, shape: Shape) -> str:
    speed = tokens_per_s * shape.operations
    utilization = f"{speed / 1e12:.0f} TFLOP/s, {speed / PEAK:.0%} of the measured peak."
    return f"so {tokens_per_s:,} tokens/s are {utilization}"


def summary() -> str:
    return "\n".join(
        [
            f"- GPT-2 small: {SMALL.operations / 1e9:.3f} GFLOP a token, "
            + describe_speed(SMALL_TOKENS_PER_S, SMALL),
            f"- GPT-2 XL: {XL.parameters:,} parameters, {XL.operations / 1e9:.2f} GFLOP a token, "
            + describe_speed(XL_TOKENS_PER_S, XL),
            f"- 48x1536x24, for tp: {EVEN.parameters:,} parameters, {EVEN.operations / 1e9:.2f} GFLOP a "
            "token.",
        ]
    )


if __name__ == "__main__":
    print(summary(), table(), sep="\n\n")
