"""What a long text costs: full, local and compressed attention in time and memory, up to 11,000 tokens.

    python recipes/attention/long.py --out results/

Forward and backward pass of one attention of 8 heads of 64, and of a whole model of five blocks 512 wide
(local and compressed alternating, as in the paper). "math" holds every score, as in 2018; "fused" is torch's
attention, which does not. Predicted is the number of scores: T T / 2 for full attention, T block / 2 for
local, T T / 6 for compressed ("math" computes those behind the mask, too: twice as many).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from common import DEVICE, save
from torch.nn.attention import SDPBackend, sdpa_kernel

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.model.attention import AttentionInputs
from glassgpt.train.forward import LossModule
from glassgpt.train.objectives.objective import LanguageModeling
from glassgpt.train.settings import TrainSettings

KINDS = ("causal", "local", "compressed")
BLOCK = 256
LENGTHS = (1024, 2048, 4096, 8192, 11008)
BACKENDS = {"fused": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
            "math": [SDPBackend.MATH]}  # fmt: skip


def predicted_scores(kind: str, T: int) -> float:
    return {"causal": T * T / 2, "local": T * BLOCK / 2, "compressed": T * T / 6}[kind]


def config_of(kind: str, T: int, smoke: bool) -> Config:
    settings = {} if kind == "causal" else {"local_block": BLOCK}
    return Config(
        vocab_size=512, n_positions=T, n_embd=64 if smoke else 512, n_layer=5, n_head=8, attention=kind,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, **settings,
    )  # fmt: skip


def time_and_memory(run: Any, rounds: int) -> tuple[float, float]:
    """The best of some rounds in milliseconds, and the peak in MiB beyond what was there before."""
    before = torch.cuda.memory_allocated() if DEVICE.type == "cuda" else 0
    best = float("inf")
    for _ in range(rounds):
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        run()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() - before if DEVICE.type == "cuda" else 0
    return 1000 * best, peak / 2**20


def measure(kind: str, T: int, backend: str, smoke: bool) -> dict[str, float]:
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    model = GPT2(config_of(kind, T, smoke)).to(DEVICE, dtype)
    attn = model.h[1].attn  # of a compressed model, a compressed block
    q, k, v = (
        torch.randn(1, 8, T, model.config.d_head, device=DEVICE, dtype=dtype, requires_grad=True)
        for _ in "qkv"
    )
    ids = torch.randint(512, (1, T), device=DEVICE)
    loss_module = LossModule(model, LanguageModeling.from_settings(TrainSettings(steps=1), model))

    def run_attention() -> None:
        attn.attend(q, k, v, AttentionInputs()).sum().backward()
        q.grad = k.grad = v.grad = None
        model.zero_grad()

    def run_model() -> None:
        loss_module(ids, ids, torch.ones_like(ids, dtype=torch.bool))[0].backward()
        model.zero_grad()

    rounds = 2 if smoke else 5
    with sdpa_kernel(BACKENDS[backend]):
        run_attention()
        attention_ms, attention_mib = time_and_memory(run_attention, rounds)
        run_model()
        model_ms, model_mib = time_and_memory(run_model, rounds)
    return {
        "attention_ms": attention_ms, "attention_mib": attention_mib, "model_ms": model_ms,
        "model_mib": model_mib, "predicted_scores": predicted_scores(kind, T),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--smoke", action="store_true", help="a miniature, to see that everything runs")
    arguments = parser.parse_args()
    results: dict[str, Any] = {backend: {kind: {} for kind in KINDS} for backend in BACKENDS}
    results["device"] = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    results["block"] = BLOCK
    for T in (256, 512) if arguments.smoke else LENGTHS:
        for backend in BACKENDS:
            for kind in KINDS:
                found = measure(kind, T, backend, arguments.smoke)
                results[backend][kind][str(T)] = found
                if DEVICE.type == "cuda":
                    torch.cuda.empty_cache()
                print(
                    f"{T:6} {backend:5} {kind:10} attention {found['attention_ms']:8.2f} ms "
                    f"{found['attention_mib']:8.0f} MiB  model {found['model_ms']:8.2f} ms "
                    f"{found['model_mib']:8.0f} MiB",
                    flush=True,
                )
        save(results, arguments.out / "long.json")


if __name__ == "__main__":
    main()
