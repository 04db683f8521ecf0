"""Tokens per second of `gpt.generate` beside `transformers` with its compiled static cache, same weights.

    python benchmarks/generate.py                          # this machine's best device
    python benchmarks/generate.py --case gpt2:1 --case gpt2:64 --case gpt2-xl:1 --rounds 3

Weights are random (speed does not depend on them), prompts are 32 tokens, decoding is greedy. Each contestant
is warmed up first (compiling included, reported apart); then they alternate, and the ratio is that of the
medians. A table for people, then one line of JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable

import torch

from glassgpt.backends.torch.backend import TorchBackend, arrange_for_gpu
from glassgpt.config import Config
from glassgpt.gpt import GPT
from glassgpt.model import GPT2

PROMPT = 32


def ours(model: GPT2, prompts: list[list[int]], new_tokens: int) -> Callable[[], list[list[int]]]:
    gpt = GPT(TorchBackend(arrange_for_gpu(copy.deepcopy(model))))

    def run() -> list[list[int]]:
        found = gpt.generate(prompts, max_new_tokens=new_tokens, temperature=0, ignore_eot=True)
        return [generation.tokens for generation in found]

    return run


def theirs(model: GPT2, prompts: list[list[int]], new_tokens: int) -> Callable[[], list[list[int]]]:
    import transformers

    weight = model.wte.weight
    with torch.device("meta"):
        twin = transformers.GPT2LMHeadModel(transformers.GPT2Config(**model.config.to_dict()))
    state = {f"transformer.{name}": value for name, value in model.state_dict().items()}
    twin.load_state_dict({**state, "lm_head.weight": weight}, assign=True)
    twin.tie_weights()
    twin.eval()
    ids = torch.tensor(prompts, device=weight.device)
    static = {"cache_implementation": "static"} if weight.is_cuda else {}

    def run() -> list[list[int]]:
        with torch.inference_mode(False), torch.no_grad():
            out = twin.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
                max_new_tokens=new_tokens, min_new_tokens=new_tokens, **static,
            )  # fmt: skip
        return out[:, PROMPT:].tolist()

    return run


def measure(
    size: str, batch: int, new_tokens: int, rounds: int, device: str, alone: bool
) -> dict[str, object]:
    torch.manual_seed(0)
    cuda = device == "cuda"
    with torch.device(device):
        model = GPT2(Config.named(size)).to(torch.bfloat16 if cuda else torch.float32).requires_grad_(False)
    model.eval()
    prompts = torch.randint(0, 50257, (batch, PROMPT)).tolist()
    contestants = {"glassgpt": ours(model, prompts, new_tokens)}
    if not alone:
        contestants["transformers"] = theirs(model, prompts, new_tokens)
    row: dict[str, object] = {"size": size, "batch": batch, "new_tokens": new_tokens, "device": device}
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    texts = {}
    for name, run in contestants.items():
        begun = time.perf_counter()
        run()
        if cuda:
            run()  # the second run still compiles for transformers
        row[f"{name}_warm_up_s"] = round(time.perf_counter() - begun, 1)
    for _ in range(rounds):
        for name, run in contestants.items():
            begun = time.perf_counter()
            texts[name] = run()
            if cuda:
                torch.cuda.synchronize()
            speeds[name].append(batch * new_tokens / (time.perf_counter() - begun))
    for name, values in speeds.items():
        row[f"{name}_tokens_per_s"] = round(statistics.median(values), 1)
    if not alone:
        row["ratio"] = round(
            statistics.median(speeds["glassgpt"]) / statistics.median(speeds["transformers"]), 2
        )
        pairs = [pair for a, b in zip(*texts.values(), strict=True) for pair in zip(a, b, strict=True)]
        row["same_tokens"] = round(sum(a == b for a, b in pairs) / len(pairs), 4)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", help="SIZE:BATCH, repeatable")
    parser.add_argument("--new-tokens", type=int, default=None, help="default 256 on a GPU, 64 on a CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--alone", action="store_true", help="leave transformers out")
    arguments = parser.parse_args()
    new_tokens = arguments.new_tokens
    if new_tokens is None:
        new_tokens = 256 if arguments.device == "cuda" else 64
    rows = []
    for case in ["gpt2:1", "gpt2:8"] if arguments.case is None else arguments.case:
        size, batch = case.rsplit(":", 1)
        row = measure(size, int(batch), new_tokens, arguments.rounds, arguments.device, arguments.alone)
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(json.dumps({"benchmark": "generate", "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
