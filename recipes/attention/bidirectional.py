"""A bidirectional model fills blanks, a causal one guesses them: two models of the same size, trained on the
same text for the same time.

    python recipes/attention/bidirectional.py BPE --out results/

BPE is a folder written by `glassgpt prepare`. Blanks are 15 % of the tokens of held-out windows. The
bidirectional model sees the windows with all blanks in them ("together"), or with one blank at a time
("alone"). The causal one sees all that precedes a blank. It can also be asked which of its 20 best guesses
makes the whole window likeliest ("rescored"): that way it uses what follows, at 20 times the work.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from common import DEVICE, held_out_rows, save, train, vocab_size
from torch import Tensor
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.train.settings import TrainSettings

CONTEXT, GUESSES = 128, 20


@torch.no_grad()
def predictions(model: GPT2, windows: Tensor, where: Tensor) -> Tensor:
    """The log-probabilities (N, V) at N places (B, T), a bool for each."""
    found = []
    for ids, places in zip(windows.split(64), where.split(64), strict=True):
        found.append(model(ids)[places].float().log_softmax(-1).cpu())
    return torch.cat(found)


def judge(logprobs: Tensor, targets: Tensor) -> dict[str, float]:
    """Of predictions (N, V) of blanks (N)."""
    best = logprobs.topk(5, dim=-1).indices
    correct = (best == targets[:, None]).float()
    n = len(targets)
    accuracy = correct[:, 0].mean().item()
    return {
        "accuracy": accuracy, "stderr": (accuracy * (1 - accuracy) / n) ** 0.5,
        "top_5": correct.sum(1).mean().item(), "n": n,
        "loss": -logprobs.gather(1, targets[:, None]).mean().item(),
    }  # fmt: skip


@torch.no_grad()
def fill_alone(model: GPT2, windows: Tensor, blanks: Tensor) -> Tensor:
    """(blanks, V): one blank at a time, each in a window of its own."""
    mask = model.config.mask_token_id
    rows, places = blanks.nonzero(as_tuple=True)
    found = []
    for chunk in torch.arange(len(rows)).split(64):
        ids = windows[rows[chunk]].clone()
        ids[torch.arange(len(chunk)), places[chunk]] = mask
        found.append(model(ids)[torch.arange(len(chunk)), places[chunk]].float().log_softmax(-1).cpu())
    return torch.cat(found)


@torch.no_grad()
def rescore(model: GPT2, windows: Tensor, blanks: Tensor, guesses: Tensor) -> Tensor:
    """(blanks): which of the guesses (blanks, G) makes the window likeliest."""
    rows, places = blanks.nonzero(as_tuple=True)
    chosen = []
    for row, place, tokens in zip(rows.tolist(), places.tolist(), guesses, strict=True):
        ids = windows[row].repeat(len(tokens), 1)
        ids[:, place] = tokens.to(ids.device)
        logits = model(ids[:, :-1]).float()
        losses = F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").sum(1)
        chosen.append(tokens[losses.argmin().cpu()])
    return torch.stack(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bpe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=50, help="of training, for each model")
    parser.add_argument("--smoke", action="store_true", help="a miniature, to see that everything runs")
    arguments = parser.parse_args()
    width, layers, windows_n, batch_size = (32, 2, 4, 8) if arguments.smoke else (256, 6, 300, 256)
    seconds = 1.0 if arguments.smoke else arguments.seconds
    windows = held_out_rows(arguments.bpe, windows_n, CONTEXT - 1)  # (N, T)
    generator = torch.Generator().manual_seed(0)
    blanks = (torch.rand(windows.shape, generator=generator) < 0.15).to(DEVICE)
    blanks[:, 0] = False  # a causal model has nothing to go by there
    targets = windows[blanks].cpu()
    results: dict[str, Any] = {"seconds": seconds, "context": CONTEXT}
    models, n_tokens = {}, vocab_size(arguments.bpe)
    for name in "causal", "bidirectional":
        blank = {"mask_token_id": n_tokens} if name == "bidirectional" else {}
        config = Config(
            vocab_size=n_tokens + len(blank), n_positions=CONTEXT, n_embd=width, n_layer=layers, n_head=4,
            attention=name, embd_pdrop=0.1, attn_pdrop=0.0, resid_pdrop=0.1, **blank,
        )  # fmt: skip
        settings = TrainSettings(
            steps=1, batch_size=batch_size, context=CONTEXT, lr=2e-3, warmup_steps=10,
            weight_decay=0.1,
            eval_every=10**8, save_every=10**8, precision="bfloat16" if DEVICE.type == "cuda" else "float32",
        )  # fmt: skip
        model, records = train(config, arguments.bpe, settings, seconds)
        models[name] = model.eval()
        results[name] = {
            "parameters": config.n_parameters, "steps": len(records), "seconds": records[-1]["seconds"],
            "curve": [[r["step"], r["loss"]] for r in records[:: max(1, len(records) // 50)]],
        }  # fmt: skip
        save(results, arguments.out / "bidirectional.json")
    causal = models["causal"]
    before = F.pad(blanks[:, 1:], (0, 1))  # a causal model guesses from the token before
    guessed = predictions(causal, windows, before)
    results["causal"]["guesses"] = judge(guessed, targets)
    model = models["bidirectional"]
    hidden = windows.masked_fill(blanks, model.config.mask_token_id)
    results["bidirectional"]["together"] = judge(predictions(model, hidden, blanks), targets)
    results["bidirectional"]["alone"] = judge(fill_alone(model, windows, blanks), targets)
    save(results, arguments.out / "bidirectional.json")
    some = blanks.clone()
    some[len(some) // 3 :] = False  # twenty windows for each blank take their time
    n = int(some.sum())
    best = rescore(causal, windows, some, guessed[:n].topk(GUESSES, dim=-1).indices)
    accuracy = (best == targets[:n]).float().mean().item()
    results["causal"]["rescored"] = {
        "accuracy": accuracy, "stderr": (accuracy * (1 - accuracy) / n) ** 0.5, "n": n,
        "accuracy_without": judge(guessed[:n], targets[:n])["accuracy"],
    }  # fmt: skip
    save(results, arguments.out / "bidirectional.json")
    for name, kinds in ("causal", ("guesses", "rescored")), ("bidirectional", ("together", "alone")):
        for kind in kinds:
            print(f"{name:13} {kind:9} accuracy {results[name][kind]['accuracy']:.1%}", flush=True)


if __name__ == "__main__":
    main()
