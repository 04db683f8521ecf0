"""Training tokens per second on one GPU: ours beside a loop in nanoGPT's manner, written for this purpose.

    python benchmarks/train_gpu.py --float8                    # GPT-2 small, 64 x 1,024 tokens a step
    python benchmarks/train_gpu.py --size gpt2-xl --batch-size 16 --alone
    python benchmarks/train_gpu.py --float8 --curve shards/    # and how the loss falls on real text

Both train the same shape in bfloat16 with float32 weights, no dropout, fused AdamW, clipping, on random
tokens. The baseline has nanoGPT's structure: Linear layers, GELU, autocast, the whole model compiled, all
logits at once, the vocabulary padded to 50,304 (ours is GPT-2's own, 50,257, padded inside). Ours is the
trainer's own step with --compile --precision bfloat16. They take turns; a table for people, then one line
of JSON. With --curve all begin with the same weights and see the same batches of real text.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import Shards
from glassgpt.train.distributed.parallelize import parallelize
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.micro_batch import AutoMicroBatch
from glassgpt.train.objectives.objective import Batch
from glassgpt.train.optim import make_optimizers
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import train_step

PADDED, CONTEXT = 50304, 1024
RATE = 6e-4
LOOKS = (20, 50, 100, 150, 200)  # means of the ten steps before
NO_DROPOUT = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(C, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(B, T, C))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class PlainModel(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(CONTEXT, config.n_embd)
        self.blocks = nn.ModuleList(PlainBlock(config.n_embd, config.n_head) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Baseline:
    def __init__(self, config: Config, start: GPT2) -> None:
        with torch.device("cuda"):
            self.model = PlainModel(dataclasses.replace(config, vocab_size=PADDED))
        self.compiled = torch.compile(self.model)
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        vectors = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizers = [torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)]
        self.begin(start)

    @torch.no_grad()
    def begin(self, start: GPT2) -> None:
        """Take these weights, and forget what the optimizer remembers."""
        self.optimizers[0].state.clear()
        for mine, theirs in ((self.model.wte, start.wte), (self.model.wpe, start.wpe)):
            mine.weight.zero_()
            mine.weight[: len(theirs.weight)] = theirs.weight
        self.model.ln_f.load_state_dict(start.ln_f.state_dict())
        for mine, theirs in zip(self.model.blocks, start.h, strict=True):
            mine.ln_1.load_state_dict(theirs.ln_1.state_dict())
            mine.ln_2.load_state_dict(theirs.ln_2.state_dict())
            pairs = (
                (mine.qkv, theirs.attn.c_attn), (mine.proj, theirs.attn.c_proj),
                (mine.fc, theirs.mlp.c_fc), (mine.out, theirs.mlp.c_proj),
            )  # fmt: skip
            for linear, projection in pairs:
                linear.weight.copy_(projection.weight.t())
                linear.bias.copy_(projection.bias)

    def step(self, batch: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss: Tensor = self.compiled(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers[0].step()
        self.optimizers[0].zero_grad(set_to_none=True)
        return loss.detach()


class Ours:
    """The trainer's own step, which reads its loss and its gradient's norm each time."""

    def __init__(self, start: GPT2, batch_size: int, precision: str) -> None:
        with torch.device("cuda"):
            self.model = GPT2(start.config)
        settings = TrainSettings(
            steps=1, lr=RATE, compile=True, precision=precision, batch_size=batch_size, context=CONTEXT
        )
        self.optimizers = make_optimizers(self.model, settings)
        self.loss_module = parallelize(self.model, settings)
        self.scaler = torch.amp.GradScaler("cuda", enabled=False)
        self.micro_batch, self.group = AutoMicroBatch(settings), ProcessGroup()
        self.begin(start)

    def begin(self, start: GPT2) -> None:
        self.optimizers[0].state.clear()
        self.model.load_state_dict(start.state_dict())

    def step(self, batch: Tensor) -> float:
        tokens = Batch.from_tokens(batch)
        return train_step(
            tokens, self.loss_module, self.optimizers, self.scaler, self.micro_batch, self.group
        ).loss


def speeds(
    contestants: dict[str, Baseline | Ours], batch_size: int, steps: int, rounds: int
) -> dict[str, float]:
    batch = torch.randint(0, 50257, (batch_size, CONTEXT + 1), device="cuda")
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        for _ in range(3):
            contestant.step(batch)
    for _ in range(rounds):
        for name, contestant in contestants.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(steps):
                contestant.step(batch)
            torch.cuda.synchronize()
            seen[name].append(steps * batch_size * CONTEXT / (time.perf_counter() - begun))
    return {name: statistics.median(values) for name, values in seen.items()}


def curves(
    contestants: dict[str, Baseline | Ours], start: GPT2, batch_size: int, shards: Path, steps: int
) -> dict[str, list[float]]:
    """The loss at each step of real text, after the same 40 steps of warm-up."""
    loader = Loader(Shards.open(shards), CONTEXT, batch_size)
    batches = [loader.batch(step) for step in range(steps)]
    found: dict[str, list[float]] = {}
    for name, contestant in contestants.items():
        contestant.begin(start)
        losses = []
        for step, batch in enumerate(batches):
            for group in contestant.optimizers[0].param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / 40)
            losses.append(contestant.step(batch.to("cuda")))
        found[name] = [round(float(loss), 4) for loss in losses]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="gpt2")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="in each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--float8", action="store_true", help="also with products in float8")
    parser.add_argument("--alone", action="store_true", help="leave the baseline out")
    parser.add_argument("--curve", type=Path, metavar="SHARDS", help="also 200 steps of real text")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with torch.device("cuda"):
        start = GPT2(Config.named(arguments.size, **NO_DROPOUT))
    contestants: dict[str, Baseline | Ours] = {"glassgpt": Ours(start, arguments.batch_size, "bfloat16")}
    if arguments.float8:
        contestants["glassgpt, float8"] = Ours(start, arguments.batch_size, "float8")
    if not arguments.alone:
        contestants["nanoGPT's manner"] = Baseline(start.config, start)
    medians = speeds(contestants, arguments.batch_size, arguments.steps, arguments.rounds)
    for name, value in medians.items():
        print(f"{name:18} {value:12,.0f} tokens/s  {value / medians['glassgpt']:.3f} of ours", flush=True)
    results = {
        "benchmark": "train_gpu",
        "size": arguments.size,
        "batch_size": arguments.batch_size,
        "tokens_per_s": medians,
    }
    results["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    if arguments.curve is not None:
        results["curves"] = found = curves(contestants, start, arguments.batch_size, arguments.curve, 200)
        print(f"{'step':18}" + "".join(f"{step:>9}" for step in LOOKS))
        for name, losses in found.items():
            print(
                f"{name:18}" + "".join(f"{statistics.mean(losses[step - 10 : step]):9.3f}" for step in LOOKS)
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
