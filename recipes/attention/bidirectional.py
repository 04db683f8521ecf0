"""A bidirectional model fills blanks, a causal one guesses them: two models of the same size, trained on the
same text for the same time.

    python recipes/attention/bidirectional.py CHARS BPE --out results/

CHARS and BPE are folders written by `glassgpt prepare`. Blanks are 15 % of the tokens of held-out windows.
The bidirectional model sees the windows with all blanks in them ("together"), or with one blank at a time
("alone"). The causal one sees all that precedes a blank. It can also be asked which of its 20 best guesses
makes the whole window likeliest ("rescored"): that way it uses what follows, at 20 times the work.

The optimizer is Muon, for both. A causal model sees the token before the one it guesses without any
attention. A masked token contains nothing: before anything else, the model has to find out which positions
are next to each other, and AdamW stays at the frequencies of the tokens for hundreds of steps.
"""

from __future__ import annotations

import argparse
import json
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


def accuracy_of(correct: Tensor) -> dict[str, float]:
    accuracy, n = correct.float().mean().item(), len(correct)
    return {"accuracy": accuracy, "stderr": (accuracy * (1 - accuracy) / n) ** 0.5, "n": n}


def judge(logprobs: Tensor, targets: Tensor) -> dict[str, float]:
    """Of predictions (N, V) of blanks (N)."""
    correct = logprobs.topk(5, dim=-1).indices == targets[:, None]  # (N, 5)
    return accuracy_of(correct[:, 0]) | {
        "top_5": correct.any(dim=1).float().mean().item(),
        "loss": -logprobs.gather(1, targets[:, None]).mean().item(),
    }


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
    for chunk in torch.arange(len(rows)).split(16):
        tokens = guesses[chunk].to(windows.device)  # (N, G)
        ids = windows[rows[chunk]][:, None].repeat(1, tokens.shape[1], 1)  # (N, G, T)
        ids[torch.arange(len(chunk)), :, places[chunk]] = tokens
        flat = ids.flatten(0, 1)
        losses = F.cross_entropy(model(flat[:, :-1]).float().mT, flat[:, 1:], reduction="none").sum(1)
        best = losses.view(tokens.shape).argmin(dim=1, keepdim=True)
        chosen.append(tokens.gather(1, best)[:, 0].cpu())
    return torch.cat(chosen)


def fit(attention: str, data: Path, smoke: bool, seconds: float) -> tuple[GPT2, dict[str, Any]]:
    """A trained model, and how that went."""
    width, layers, batch_size = (32, 2, 8) if smoke else (256, 6, 128)
    n_tokens = vocab_size(data)
    blank = {"mask_token_id": n_tokens} if attention == "bidirectional" else {}
    config = Config(
        vocab_size=n_tokens + len(blank), n_positions=CONTEXT, n_embd=width, n_layer=layers, n_head=4,
        attention=attention, embd_pdrop=0.1, attn_pdrop=0.0, resid_pdrop=0.1, **blank,
    )  # fmt: skip
    settings = TrainSettings(
        steps=1, batch_size=batch_size, context=CONTEXT, optimizer="muon", lr=2e-3, warmup_steps=50,
        eval_every=10**8, save_every=10**8, precision="bfloat16" if DEVICE.type == "cuda" else "float32",
    )  # fmt: skip
    model, records = train(config, data, settings, seconds)
    return model.eval(), {
        "parameters": config.n_parameters, "steps": len(records), "seconds": records[-1]["seconds"],
        "curve": [[r["step"], r["loss"]] for r in records[:: max(1, len(records) // 50)]],
    }  # fmt: skip


def measure(data: Path, smoke: bool, seconds: float) -> dict[str, Any]:
    """Both models, and what they make of the same blanks."""
    windows = held_out_rows(data, 4 if smoke else 300, CONTEXT - 1)  # (N, T)
    blanks = (torch.rand(windows.shape, generator=torch.Generator().manual_seed(0)) < 0.15).to(DEVICE)
    blanks[:, 0] = False  # a causal model has nothing to go by there
    targets = windows[blanks].cpu()

    causal, results = fit("causal", data, smoke, seconds)
    before = F.pad(blanks[:, 1:], (0, 1))  # a causal model guesses from the token before
    guessed = predictions(causal, windows, before)
    results["guesses"] = judge(guessed, targets)
    some = blanks.clone()
    some[len(some) // 3 :] = False  # twenty windows for each blank take their time
    n = int(some.sum())
    best = rescore(causal, windows, some, guessed[:n].topk(GUESSES, dim=-1).indices)
    results["rescored"] = accuracy_of(best == targets[:n])
    found = {"causal": results}

    model, results = fit("bidirectional", data, smoke, seconds)
    hidden = windows.masked_fill(blanks, model.config.mask_token_id)
    results["together"] = judge(predictions(model, hidden, blanks), targets)
    results["alone"] = judge(fill_alone(model, windows, blanks), targets)
    return found | {"bidirectional": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chars", type=Path)
    parser.add_argument("bpe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("chars", "bpe"), help="one of the two; the other's results stay")
    parser.add_argument("--seconds", type=float, default=45, help="of training, for each model")
    parser.add_argument("--smoke", action="store_true", help="a miniature, to see that everything runs")
    arguments = parser.parse_args()
    seconds = 0.1 if arguments.smoke else arguments.seconds
    file = arguments.out / "bidirectional.json"
    results: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {"context": CONTEXT}
    for name in ("chars", "bpe") if arguments.only is None else (arguments.only,):
        found = results[name] = measure(getattr(arguments, name), arguments.smoke, seconds)
        save(results, file)
        for model, kinds in ("causal", ("guesses", "rescored")), ("bidirectional", ("together", "alone")):
            for kind in kinds:
                print(
                    f"{name}: {model:13} {kind:9} accuracy {found[model][kind]['accuracy']:.1%}", flush=True
                )


if __name__ == "__main__":
    main()
