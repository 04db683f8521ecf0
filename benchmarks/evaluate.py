"""Scoring, beside lm-evaluation-harness's own `hf` model on the same weights and requests.

    python benchmarks/evaluate.py --data data/ [--model default] [--documents 200] [--batch auto]

The requests are those of lambada_openai, hellaswag and wikitext. Both get the same texts, cut them into
tokens themselves and take turns. The table gives seconds of CPU time (a busy machine stretches the clock, not
that), the ratio of those and of the clock, and by how much the answers differ at most. `--batch auto` lets
the harness look for its largest batch, as its `--batch_size auto` does; a number spares it the search.
`--model random:small` takes random weights in GPT-2 small's shape, `random:47M` in that of the shipped model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from lm_eval.models.huggingface import HFLM

import glassgpt
from eval_requests import TASKS, export, pairs_of, responses
from glassgpt.evaluate.harness import GlassGPTLM

Answers = list[tuple[float, bool]]


def timed(work: Callable[[], Answers]) -> tuple[Answers, float, float]:
    cpu, clock = time.process_time(), time.perf_counter()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        found = work()
    return found, time.process_time() - cpu, time.perf_counter() - clock


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="default", help="a model, or random:small, random:47M")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--batch", default="auto")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        export(args.model, folder)
        gpt = glassgpt.load(folder, device=args.device, dtype="float32")
        batch = args.batch if args.batch.startswith("auto") else int(args.batch)
        print(
            f"{'task':16} {'requests':>8} {'ours':>8} {'theirs':>8} {'ratio':>6} {'clock':>6} {'differ':>8}"
        )
        for task in args.tasks.split(","):
            # An article of wikitext is as long as a hundred passages.
            pairs = pairs_of(task, args.data, max(1, args.documents // (100 if task == "wikitext" else 1)))
            best: dict[str, tuple[float, float]] = {}
            for _ in range(args.rounds):
                a, *times = timed(lambda: responses(GlassGPTLM(gpt), task, pairs))  # noqa: B023
                best["ours"] = min(best.get("ours", (1e9, 1e9)), tuple(times))  # type: ignore[type-var]
                hf = HFLM(pretrained=str(folder), device=args.device, dtype="float32", batch_size=batch)
                b, *times = timed(lambda: responses(hf, task, pairs))  # noqa: B023
                best["theirs"] = min(best.get("theirs", (1e9, 1e9)), tuple(times))  # type: ignore[type-var]
            differ = max(abs(x - y) for (x, _), (y, _) in zip(a, b, strict=True))
            ratios = [t / o for o, t in zip(best["ours"], best["theirs"], strict=True)]
            print(
                f"{task:16} {len(pairs):8} {best['ours'][0]:8.2f} {best['theirs'][0]:8.2f} "
                f"{ratios[0]:6.2f} {ratios[1]:6.2f} {differ:8.1e}",
                flush=True,
            )
            seconds = {f"{who}_s": {"cpu": cpu, "clock": clock} for who, (cpu, clock) in best.items()}
            results.append({"task": task, "requests": len(pairs), **seconds, "difference": differ})
            results[-1] |= {"ratio": ratios[0], "ratio_clock": ratios[1]}
    about = {"model": args.model, "batch": args.batch, "threads": torch.get_num_threads()}
    print(json.dumps({"benchmark": "evaluate", **about, "results": results}))


if __name__ == "__main__":
    main()
