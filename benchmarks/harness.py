"""Our model class for lm_eval beside its own `hf` on the same exported weights, request by request.

    python benchmarks/harness.py --data data/ [--model default] [--documents 500] [--softmax float64]

For each of lambada_openai, hellaswag and wikitext: how many requests, the largest difference in
log-likelihood, the same as a share of it, and how many greedy flags differ. Exit code 1 where a difference
is 1e-4 or more, or a flag differs. A page of wikitext has a log-likelihood of tens of thousands, of which
float32 (in which both compute, and `hf` adds up a window) keeps seven digits: there 1e-6 of it is allowed.
`--softmax float64` lets `hf` add up without rounding.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from evaluate import pairs_of
from glassgpt.evaluate.harness import Harness
from glassgpt.weights import load_checkpoint, save_checkpoint


def answers(model: Any, task: str, pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    if task == "wikitext":
        requests = [Instance("loglikelihood_rolling", {}, (page,), i) for i, (_, page) in enumerate(pairs)]
        return [(total, True) for total in model.loglikelihood_rolling(requests, disable_tqdm=True)]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    return list(model.loglikelihood(requests, disable_tqdm=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--batch", type=int, default=4, help="of hf")
    parser.add_argument("--tasks", default="lambada_openai,hellaswag,wikitext")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--softmax", help="hf's softmax_dtype: float64 adds up without rounding")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save_checkpoint(load_checkpoint(args.model), folder, dtype="float32")
        hf = HFLM(
            pretrained=str(folder),
            device=args.device,
            dtype="float32",
            batch_size=args.batch,
            softmax_dtype=args.softmax,
        )
        ours = Harness(str(folder), device=args.device)
        print(f"{'task':16} {'requests':>8} {'difference':>11} {'relative':>9} {'flags':>6} {'of':>6}")
        for task in args.tasks.split(","):
            # The file of wikitext has 62 pages: all of them are its 500 documents.
            pairs = pairs_of(task, args.data, args.documents * (100 if task == "wikitext" else 1))
            a, b = answers(ours, task, pairs), answers(hf, task, pairs)
            difference = max(abs(x - y) for (x, _), (y, _) in zip(a, b, strict=True))
            relative = max(abs(x - y) / abs(y) for (x, _), (y, _) in zip(a, b, strict=True))
            flags = sum(x != y for (_, x), (_, y) in zip(a, b, strict=True))
            greedy = sum(flag for _, flag in b)
            equal = not flags and (relative < 1e-6 if task == "wikitext" else difference < 1e-4)
            print(
                f"{task:16} {len(pairs):8} {difference:11.1e} {relative:9.1e} {flags:6} {greedy:6}",
                flush=True,
            )
            results.append({"task": task, "requests": len(pairs), "difference": difference})
            results[-1] |= {"relative": relative, "flags_differ": flags, "equal": equal}
    print(json.dumps({"benchmark": "harness", "model": args.model, "results": results}))
    return 0 if all(result["equal"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
