"""Our model class for lm_eval beside its own `hf` on the same exported weights, request by request.

    python benchmarks/harness.py --data data/ [--model default] [--documents 500]

Both answer every request twice: computing in float64, where rounding plays no part, so that a difference
would be one of tokens, windows or sums; and in float32, in which they are used. For each of lambada_openai,
hellaswag and wikitext (all its 62 pages) the table has, as the largest over all requests,

    float64   how far our log-likelihood is from that of hf, both in float64
    float32   the same, both in float32
    our error, hf's error   how far each one's float32 is from hf's float64
    flags     how many greedy flags differ, in either

Exit code 1 where float64 differs by 1e-4 or more, a flag differs, or float32 differs by 1e-4 or more although
hf is that close to its own float64. Of a page's tens of thousands of nats a float32 keeps seven digits, and
hf adds up each window in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from lm_eval.models.huggingface import HFLM

from eval_requests import TASKS, export, pairs_of, responses
from glassgpt.evaluate.harness import GlassGPTLM

CLOSE = 1e-4


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="default", help="a model, or random:small, random:47M")
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--batch", type=int, default=4, help="of hf")
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch) / "model")
        export(args.model, Path(folder))
        hf, ours = {}, {}
        for dtype in ("float64", "float32"):
            hf[dtype] = HFLM(pretrained=folder, device=args.device, dtype=dtype, batch_size=args.batch)
            ours[dtype] = GlassGPTLM(folder, device=args.device, dtype=dtype)
        heads = ("requests", "float64", "float32", "our error", "hf's error", "flags")
        print(f"{'task':16}" + "".join(f"{head:>11}" for head in heads))
        for task in args.tasks.split(","):
            pairs = pairs_of(task, args.data, args.documents)
            a64, a32 = (responses(ours[dtype], task, pairs) for dtype in ours)
            b64, b32 = (responses(hf[dtype], task, pairs) for dtype in hf)
            found = {
                "float64": farthest(a64, b64),
                "float32": farthest(a32, b32),
                "our_error": farthest(a32, b64),
                "hf_error": farthest(b32, b64),
            }
            flags = sum(
                x != y for some, other in ((a64, b64), (a32, b32))
                for (_, x), (_, y) in zip(some, other, strict=True)
            )  # fmt: skip
            print(
                f"{task:16}{len(pairs):11}" + "".join(f"{x:11.1e}" for x in found.values()) + f"{flags:11}",
                flush=True,
            )
            equal = found["float64"] < CLOSE and not flags
            equal = equal and (found["float32"] < CLOSE or found["hf_error"] >= CLOSE / 2)
            results.append({"task": task, "requests": len(pairs), **found, "flags": flags, "equal": equal})
    print(json.dumps({"benchmark": "harness", "model": args.model, "results": results}))
    return 0 if all(result["equal"] for result in results) else 1


def farthest(some: list[tuple[float, bool]], other: list[tuple[float, bool]]) -> float:
    return max(abs(x - y) for (x, _), (y, _) in zip(some, other, strict=True))


if __name__ == "__main__":
    sys.exit(main())
