"""Training tokens per second on this CPU: ours beside a plain eager loop in nanoGPT's manner.

    python benchmarks/train_cpu.py                      # 6 blocks, 384 wide, context 256, vocabulary 4,096
    python benchmarks/train_cpu.py --threads 1 --batch-size 4 --rounds 3

The baseline is what nanoGPT does on a CPU: Linear layers, all logits at once, AdamW parameter by parameter,
float32, nothing compiled. Ours is the trainer's own update (train/loop.py): as `glassgpt train` runs it here
("ours"), and in float32 like the baseline. The same shape, batch, rate and clipping; no dropout; random
tokens. They take turns, and the fastest round counts: other work on the machine only ever slows down. CPU
seconds stand beside the clock, as they hardly depend on what else runs. A table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.train.distributed.parallelize import parallelize
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.micro_batch import AutoMicroBatch
from glassgpt.train.objectives.objective import Batch
from glassgpt.train.optim import make_optimizers
from glassgpt.train.precision import pick_precision
from glassgpt.train.report.environment import device_name
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import train_step

CONFIG = Config(
    vocab_size=4096, n_positions=256, n_embd=384, n_layer=6, n_head=6,
    embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
)  # fmt: skip
CPU = torch.device("cpu")


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in (q, k, v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(z.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.narrow(F.gelu(self.c_fc(self.ln_2(x))))


class PlainModel(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(PlainBlock(config.n_embd, config.n_head) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def baseline(batch: Tensor, settings: TrainSettings) -> Callable[[], float]:
    model = PlainModel(CONFIG)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95))

    def step() -> float:
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def ours(batch: Tensor, settings: TrainSettings) -> Callable[[], float]:
    model = GPT2(CONFIG)
    optimizers = make_optimizers(model, settings)
    loss_module, micro_batch, group = parallelize(model, settings), AutoMicroBatch(settings), ProcessGroup()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    tokens = Batch.from_tokens(batch)
    return lambda: train_step(tokens, loss_module, optimizers, scaler, micro_batch, group).loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=16, help="sequences of 256 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compiled", action="store_true", help="let a compiled one take part, too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    batch = torch.randint(0, CONFIG.vocab_size, (arguments.batch_size, 257))
    settings = TrainSettings(steps=1, batch_size=arguments.batch_size, precision=pick_precision(CPU))
    contestants = {
        "baseline": baseline(batch, settings),
        "ours": ours(batch, settings),
        "ours, float32": ours(batch, replace(settings, precision="float32")),
    }
    if arguments.compiled:
        contestants["ours, compiled"] = ours(batch, replace(settings, compile=True))
    clock: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for step in contestants.values():
        step()
    for _ in range(arguments.rounds):
        for name, step in contestants.items():
            begun, worked = time.perf_counter(), time.process_time()
            step()
            clock[name].append(time.perf_counter() - begun)
            cpu[name].append(time.process_time() - worked)
    tokens = batch[:, 1:].numel()
    print(f"{device_name(CPU)}, {arguments.threads} threads; ours is in {settings.precision}")
    print(f"{'':16} {'tokens/s':>9} {'x baseline':>11} {'CPU s a step':>13} {'x baseline':>11}")
    result = {}
    for name in contestants:
        best, work = min(clock[name]), min(cpu[name])
        result[name] = {
            "tokens_per_s": round(tokens / best),
            "ratio": round(min(clock["baseline"]) / best, 3),
            "cpu_s": round(work, 3),
            "cpu_ratio": round(min(cpu["baseline"]) / work, 3),
        }
        print(
            "{:16} {tokens_per_s:9,} {ratio:11.2f} {cpu_s:13.2f} {cpu_ratio:11.2f}".format(
                name, **result[name]
            )
        )
    print(
        json.dumps({"benchmark": "train_cpu", "precision": settings.precision, **vars(arguments), **result})
    )


if __name__ == "__main__":
    main()
