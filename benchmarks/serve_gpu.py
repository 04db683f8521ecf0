"""Tokens per second of many concurrent requests: our service beside `transformers`' continuous batching.

    python benchmarks/serve_gpu.py                                   # gpt2 and gpt2-xl, 64 and 256 requests
    python benchmarks/serve_gpu.py --case gpt2:64 --rounds 3 --out results
    python benchmarks/serve_gpu.py --smoke                           # a miniature, on any machine

Both have the same random weights (speed does not depend on them) in the same dtype, and get the same
requests: prompts of 16 to 256 tokens, all at once, greedy, without an end. Ours go through the service that
`glassgpt serve` uses, theirs through `model.generate_batch`. Each is warmed up first, then they alternate;
the ratio is that of the medians. A table for people, then one line of JSON, which is also written to `--out`
after every case.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from glassgpt.backends.torch.backend import TorchBackend, arrange_for_gpu
from glassgpt.config import Config
from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.service.fair_queue import QueueLimits
from glassgpt.generate.service.service import Job, Service, Update
from glassgpt.model import GPT2

CASES = ["gpt2:64", "gpt2:256", "gpt2-xl:64", "gpt2-xl:256"]
Run = Callable[[], list[list[int]]]


def ours(model: GPT2, prompts: list[list[int]], new_tokens: int, context: int) -> tuple[Run, Service]:
    backend = TorchBackend(model, rows=len(prompts), context=context)
    service = Service(Engine(backend), QueueLimits(len(prompts), 10**9))
    settings = SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eot=True, logprobs=None)

    def run() -> list[list[int]]:
        updates: queue.SimpleQueue[list[Update]] = queue.SimpleQueue()
        jobs = [Job(prompt, settings, updates.put) for prompt in prompts]
        service.submit(jobs)
        found: dict[Job, list[int]] = {}
        while len(found) < len(jobs):
            for update in updates.get(timeout=600):
                if update.error is not None:
                    raise update.error
                if update.event is not None and update.event.generation is not None:
                    found[update.job] = update.event.generation.tokens
        return [found[job] for job in jobs]

    return run, service


def theirs(model: GPT2, prompts: list[list[int]], new_tokens: int) -> tuple[Run, Callable[[], None]]:
    import transformers

    weight = model.wte.weight
    with torch.device("meta"):
        twin = transformers.GPT2LMHeadModel(transformers.GPT2Config(**model.config.to_dict()))
    state = {f"transformer.{name}": value for name, value in model.state_dict().items()}
    twin.load_state_dict({**state, "lm_head.weight": weight}, assign=True)
    twin.tie_weights()
    twin.eval()
    config = transformers.GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )

    # On a GPU it chooses everything from the memory there is; a CPU has to be told.
    sizes = {"max_memory_percent": 0.6} if weight.is_cuda else {"num_blocks": 64, "max_batch_tokens": 256}
    batching = transformers.ContinuousBatchingConfig(**sizes)

    def run() -> list[list[int]]:
        with torch.no_grad():
            found = twin.generate_batch(
                prompts,
                generation_config=config,
                continuous_batching_config=batching,
                persistent_manager=True,  # what it has captured is kept from round to round
            )
        ordered = sorted(found.items(), key=lambda item: int(item[0].rpartition("_")[2]))
        return [list(output.generated_tokens) for _, output in ordered]

    return run, twin.destroy_cached_continuous_batching_manager


def measure(case: str, args: argparse.Namespace) -> dict[str, Any]:
    size, _, count = case.partition(":")
    torch.manual_seed(0)
    rng = random.Random(0)
    config = Config(n_layer=2, n_embd=64, n_head=2, vocab_size=512) if args.smoke else Config.named(size)
    longest = 32 if args.smoke else 256
    prompts = [
        [rng.randrange(config.vocab_size) for _ in range(rng.randint(16, longest))] for _ in range(int(count))
    ]
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    with torch.device(args.device):
        model = GPT2(config).to(dtype).requires_grad_(False).eval()
    run, service = ours(arrange_for_gpu(model), prompts, args.new_tokens, longest + args.new_tokens)
    contestants, closing = {"glassgpt": run}, [service.close]
    if not args.alone:
        contestants["transformers"], close = theirs(model, prompts, args.new_tokens)
        closing.append(close)
    row: dict[str, Any] = {"case": case, "new_tokens": args.new_tokens, "device": args.device}
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    found: dict[str, list[list[int]]] = {}
    for number in range(args.rounds + 1):
        for name, call in contestants.items():
            begun = time.perf_counter()
            texts = found[name] = call()
            seconds = time.perf_counter() - begun
            tokens = sum(map(len, texts))
            assert tokens == len(prompts) * args.new_tokens, (name, tokens)
            if number == 0:
                row[f"{name}_first_s"] = round(seconds, 2)  # with compiling and capturing
            else:
                speeds[name].append(tokens / seconds)
    for close in closing:
        close()
    for name, values in speeds.items():
        row[f"{name}_tokens_per_s"] = round(statistics.median(values))
    if len(speeds) == 2:
        row["ratio"] = round(row["glassgpt_tokens_per_s"] / row["transformers_tokens_per_s"], 2)
        same = [a == b for a, b in zip(*found.values(), strict=True)]  # random weights in bfloat16: many ties
        row["same_texts"] = round(sum(same) / len(same), 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", help="SIZE:REQUESTS; repeatable")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="folder for serve_gpu.json")
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--smoke", action="store_true", help="a miniature model and short texts")
    args = parser.parse_args()
    if args.smoke:
        args.new_tokens = 8
    rows = []
    for case in args.case or (["gpt2:4"] if args.smoke else CASES):
        try:
            rows.append(measure(case, args))
        except Exception as error:  # the other cases are still worth measuring
            rows.append({"case": case, "error": f"{type(error).__name__}: {error}"[:2000]})
        print(*(f"{key} {value}" for key, value in rows[-1].items()), sep="  ", flush=True)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / "serve_gpu.json").write_text(json.dumps(rows, indent=1))
        if args.device == "cuda":
            torch.cuda.empty_cache()
    print(json.dumps({"serve_gpu": rows}))


if __name__ == "__main__":
    main()
