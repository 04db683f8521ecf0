"""What drawing a token costs, beside the logits processors of `transformers` on the same logits.

    python benchmarks/sampling.py [--batch-size 1] [--vocab 50257] [--device cpu]

Both get the same (rows, vocab) logits, alternate, and the table gives medians per row and their ratio. Then
one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers

from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.sampler import draw_tokens, stack_metadata

CASES = {
    "greedy": SamplingParams(temperature=0),
    "top-k 40": SamplingParams(),
    "top-k 40, top-p 0.9": SamplingParams(top_p=0.9),
    "top-p 0.9": SamplingParams(top_k=None, top_p=0.9),
    "min-p 0.05": SamplingParams(top_k=None, min_p=0.05),
    "plain": SamplingParams(top_k=None),
    "typical 0.9": SamplingParams(top_k=None, typical_p=0.9),
}


def ours(logits: torch.Tensor, settings: SamplingParams) -> Callable[[], object]:
    rows, vocab = logits.shape
    on_host = logits.device.type == "cpu"

    def array(values: np.ndarray) -> object:
        return values if on_host else torch.from_numpy(values).to(logits.device)

    given = logits.numpy() if on_host else logits
    columns, uniform = stack_metadata([settings] * rows, vocab, array), array(np.linspace(0.05, 0.95, rows))
    return lambda: draw_tokens(given, columns, uniform).tokens


def theirs(logits: torch.Tensor, settings: SamplingParams) -> Callable[[], object]:
    steps = transformers.LogitsProcessorList()
    if not settings.greedy:
        steps.append(transformers.TemperatureLogitsWarper(settings.temperature))
    if settings.top_k is not None and not settings.greedy:
        steps.append(transformers.TopKLogitsWarper(settings.top_k))
    if settings.typical_p is not None:
        steps.append(transformers.TypicalLogitsWarper(settings.typical_p))
    if settings.top_p is not None:
        steps.append(transformers.TopPLogitsWarper(settings.top_p))
    if settings.min_p is not None:
        steps.append(transformers.MinPLogitsWarper(settings.min_p))
    prompt = torch.zeros(len(logits), 1, dtype=torch.int64, device=logits.device)

    def run() -> object:
        logprobs = torch.log_softmax(logits, -1)  # ours reports the chosen token's log-probability, too
        scores = steps(prompt, logits)
        chosen = scores.argmax(-1) if settings.greedy else torch.multinomial(scores.softmax(-1), 1)[:, 0]
        return chosen, logprobs.gather(1, chosen[:, None])

    return run


def seconds(run: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(options.batch_size, options.vocab, generator=generator)).to(options.device)
    results = {}
    print(f"{options.batch_size} x {options.vocab:,} logits on {options.device}, ms per row")
    print(f"{'':22}{'glassgpt':>10}{'transformers':>14}{'ratio':>8}")
    for name, settings in CASES.items():
        contestants = [ours(logits, settings), theirs(logits, settings)]
        times: list[list[float]] = [[], []]
        for round_number in range(options.rounds + 3):
            for contestant, kept in zip(contestants, times, strict=True):
                taken = seconds(contestant, options.device)
                if round_number >= 3:  # the first rounds warm up
                    kept.append(taken)
        own, other = (1000 * statistics.median(kept) / options.batch_size for kept in times)
        results[name] = {"ms": own, "transformers_ms": other, "ratio": other / own}
        print(f"{name:22}{own:10.3f}{other:14.3f}{other / own:8.1f}")
    print(json.dumps({"benchmark": "sampling", **vars(options), "results": results}))


if __name__ == "__main__":
    main()
