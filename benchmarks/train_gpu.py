"""Training tokens per second on one GPU: ours beside a loop in nanoGPT's manner, written for this purpose.

    python benchmarks/train_gpu.py                     # GPT-2 small, 64 x 1,024 tokens a step
    python benchmarks/train_gpu.py --size gpt2-xl --rows 16 --alone

Both train the same shape in bfloat16 with float32 weights, no dropout, fused AdamW, clipping, on random
tokens. The baseline has nanoGPT's structure: Linear layers, GELU, autocast, the whole model compiled, all
logits at once, the vocabulary padded to 50,304 (ours is GPT-2's own, 50,257, padded inside). Ours is the
trainer's own step with --compile --precision bfloat16. They take turns; a table for people, then one line
of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.train.loop import update
from glassgpt.train.optim import make_optimizers
from glassgpt.train.settings import TrainSettings
from glassgpt.train.team import Team
from glassgpt.train.way import Way

PADDED, CONTEXT = 50304, 1024
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


def baseline(config: Config, batch: Tensor) -> Callable[[], object]:
    with torch.device("cuda"):
        model = PlainModel(config)
    compiled = torch.compile(model)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)

    def step() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def ours(config: Config, batch: Tensor, precision: str) -> Callable[[], object]:
    """The trainer's own step, which reads its loss and its gradient's norm each time."""
    with torch.device("cuda"):
        model = GPT2(config)
    settings = TrainSettings(
        steps=1, lr=6e-4, compile=True, precision=precision, rows=len(batch), context=CONTEXT
    )
    optimizers = make_optimizers(model, settings)
    team = Team(model, way=Way.of(settings, model))
    scaler = torch.amp.GradScaler("cuda", enabled=False)

    return lambda: update(batch, optimizers, scaler, settings, team)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="gpt2")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="in each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--float8", action="store_true", help="also with products in float8")
    parser.add_argument("--alone", action="store_true", help="leave the baseline out")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = Config.named(arguments.size, **NO_DROPOUT)
    batch = torch.randint(0, 50257, (arguments.rows, CONTEXT + 1), device="cuda")
    contestants = {"glassgpt": ours(config, batch, "bfloat16")}
    if arguments.float8:
        contestants["glassgpt, float8"] = ours(config, batch, "float8")
    if not arguments.alone:
        contestants["nanoGPT's manner"] = baseline(dataclasses.replace(config, vocab_size=PADDED), batch)
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    for step in contestants.values():
        for _ in range(3):
            step()
    for _ in range(arguments.rounds):
        for name, step in contestants.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(arguments.steps):
                step()
            torch.cuda.synchronize()
            taken = time.perf_counter() - begun
            speeds[name].append(arguments.steps * arguments.rows * CONTEXT / taken)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, value in medians.items():
        print(f"{name:18} {value:12,.0f} tokens/s  {value / medians['glassgpt']:.3f} of ours")
    memory = torch.cuda.max_memory_allocated() / 1e9
    print(
        json.dumps({"benchmark": "train_gpu", **vars(arguments), "tokens_per_s": medians, "peak_gb": memory})
    )


if __name__ == "__main__":
    main()
