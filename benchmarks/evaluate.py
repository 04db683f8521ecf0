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
from typing import Any

import torch

import glassgpt
from glassgpt.evaluate import Reader, Scorer, datasets
from glassgpt.evaluate.detokenise import harness_wikitext
from glassgpt.evaluate.perplexity import pages
from glassgpt.evaluate.rows import Group, rolling_rows
from glassgpt.evaluate.suites import HARNESS
from glassgpt.weights import load_checkpoint, save_checkpoint

SHAPES = {"small": {}, "47M": {"vocab_size": 16384, "n_embd": 512, "n_head": 8}}


def random_model(shape: str, folder: Path) -> None:
    """A published shape with random numbers and the shipped model's tokenizer."""
    from glassgpt.config import Config
    from glassgpt.model import GPT2
    from glassgpt.weights import Checkpoint

    torch.manual_seed(0)
    config = Config(**SHAPES[shape])
    tensors = {name: values.numpy() for name, values in GPT2(config).state_dict().items()}
    save_checkpoint(Checkpoint(config, tensors, load_checkpoint("default").tokenizer), folder)


def pairs_of(task: str, data: Path, documents: int) -> list[tuple[str, str]]:
    """(context, continuation) of each request; for wikitext ("", page)."""
    if task == "lambada_openai":
        text, _ = datasets.load(datasets.LAMBADA, data)
        passages = [json.loads(line)["text"] for line in text.splitlines()[:documents]]
        return [(p.rpartition(" ")[0], " " + p.rpartition(" ")[2]) for p in passages]
    if task == "hellaswag":
        text, _ = datasets.load(datasets.HELLASWAG, data)
        (hellaswag,) = (t for t in HARNESS if t.name == "hellaswag")
        return [pair for q in hellaswag.questions(text)[:documents] for pair in q.pairs]  # type: ignore[attr-defined]
    text, _ = datasets.load(datasets.WIKITEXT_2_RAW, data)
    return [("", harness_wikitext(page)) for page in pages(text)[: max(1, documents // 100)]]


def ours(gpt: glassgpt.GPT, task: str, pairs: list[tuple[str, str]]) -> list[float]:
    reader = Reader(gpt.tokenizer, gpt.backend.context)
    groups: list[Group] = []
    if task == "wikitext":
        for _, page in pairs:
            ids = gpt.tokenizer.encode(page)
            groups.append(
                list(rolling_rows(ids, reader.n_positions, reader.n_positions, gpt.tokenizer.eot_id))
            )
        return [sum(one.total for one in found) for found in Scorer(gpt.backend).score(groups)]
    together = 4 if task == "hellaswag" else 1
    rows = [reader.continuation(*pair)[0] for pair in pairs]
    for i in range(0, len(rows), together):
        groups.append([row for one in rows[i : i + together] for row in one])
    return [one.total for found in Scorer(gpt.backend).score(groups) for one in found]


def theirs(model: Any, task: str, pairs: list[tuple[str, str]]) -> list[float]:
    from lm_eval.api.instance import Instance

    if task == "wikitext":
        requests = [Instance("loglikelihood_rolling", {}, (page,), i) for i, (_, page) in enumerate(pairs)]
        return list(model.loglikelihood_rolling(requests, disable_tqdm=True))
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    return [total for total, _ in model.loglikelihood(requests, disable_tqdm=True)]


def timed(work: Callable[[], list[float]]) -> tuple[list[float], float, float]:
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
    parser.add_argument("--tasks", default="lambada_openai,hellaswag,wikitext")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    from lm_eval.models.huggingface import HFLM

    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        if args.model.startswith("random:"):
            random_model(args.model.removeprefix("random:"), folder)
        else:
            save_checkpoint(load_checkpoint(args.model), folder, dtype="float32")
        gpt = glassgpt.load(folder, device=args.device, dtype="float32")
        batch = args.batch if args.batch.startswith("auto") else int(args.batch)
        print(
            f"{'task':16} {'requests':>8} {'ours':>8} {'theirs':>8} {'ratio':>6} {'clock':>6} {'differ':>8}"
        )
        for task in args.tasks.split(","):
            pairs = pairs_of(task, args.data, args.documents)
            best: dict[str, tuple[float, float]] = {}
            for _ in range(args.rounds):
                a, *times = timed(lambda: ours(gpt, task, pairs))  # noqa: B023
                best["ours"] = min(best.get("ours", (1e9, 1e9)), tuple(times))  # type: ignore[type-var]
                hf = HFLM(pretrained=str(folder), device=args.device, dtype="float32", batch_size=batch)
                b, *times = timed(lambda: theirs(hf, task, pairs))  # noqa: B023
                best["theirs"] = min(best.get("theirs", (1e9, 1e9)), tuple(times))  # type: ignore[type-var]
            differ = max(abs(x - y) for x, y in zip(a, b, strict=True))
            ratios = [t / o for o, t in zip(best["ours"], best["theirs"], strict=True)]
            print(
                f"{task:16} {len(pairs):8} {best['ours'][0]:8.2f} {best['theirs'][0]:8.2f} "
                f"{ratios[0]:6.2f} {ratios[1]:6.2f} {differ:8.1e}",
                flush=True,
            )
            results.append({"task": task, "requests": len(pairs), "ours_s": best["ours"][0]})
            results[-1] |= {"theirs_s": best["theirs"][0], "ratio": ratios[0], "ratio_clock": ratios[1]}
    print(json.dumps({"benchmark": "evaluate", "model": args.model, "batch": args.batch, "results": results}))


if __name__ == "__main__":
    main()
