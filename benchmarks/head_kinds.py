"""Do the kinds of heads mean something? Their scores, and what mean-ablating each head costs on held-out
text.

    python benchmarks/head_kinds.py --data TEXTS

A head's scores come from random repeated tokens and its weights (`gpt.heads()`), its cost from texts it has
not seen: the rise of the loss when its output is replaced by its mean. Printed is the rank correlation over
all heads, with the share of 10,000 random orders that reach it: of each kind with the mean rise, and with
how much larger the rise is at tokens that an induction head can predict (the token after an earlier copy of
the current one) than elsewhere.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np

import glassgpt
from glassgpt.inspect import AblateHead
from glassgpt.inspect.components.windows import read_windows


def can_be_induced(ids: list[int]) -> np.ndarray:
    """Of each token but the first: whether it once followed the token before it."""
    seen: dict[int, set[int]] = {}
    found = []
    for before, after in pairwise(ids):
        found.append(after in seen.get(before, ()))
        seen.setdefault(before, set()).add(after)
    return np.array(found)


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(float)


def rank_correlation(a: np.ndarray, b: np.ndarray, orders: int = 10_000) -> tuple[float, float]:
    """Spearman's, and the share of random orders whose correlation is as high."""
    x, y = (each - each.mean() for each in (ranks(a), ranks(b)))
    size = np.sqrt((x**2).sum() * (y**2).sum())
    found = float(x @ y / size)
    random = np.random.default_rng(0)
    by_chance = np.array([random.permutation(x) @ y for _ in range(orders)]) / size
    return found, float((by_chance >= found).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()
    gpt = glassgpt.load(args.model, device="cpu")
    assert gpt.tokenizer is not None
    windows = read_windows(args.data, gpt.tokenizer, args.length, None)
    texts = []
    for window in windows:
        if len(window.ids) == args.length:
            texts.append(window.ids)
        if len(texts) == args.texts:
            break
    scores = gpt.heads()
    shape = scores.values.shape[1:]
    rise, at_copies = np.zeros(shape), np.zeros(shape)
    copies = np.concatenate([can_be_induced(ids) for ids in texts])
    traces = [gpt.trace(ids) for ids in texts]
    plain = np.concatenate([trace.token_loss.nats[1:] for trace in traces])
    for layer in range(shape[0]):
        for head in range(shape[1]):
            edit = AblateHead(layer, head, "mean")
            after = [gpt.intervene(trace, edit).after.token_loss.nats[1:] for trace in traces]
            more = np.concatenate(after) - plain
            rise[layer, head] = more.mean()
            at_copies[layer, head] = more[copies].mean() - more[~copies].mean()
    print(
        f"{len(plain):,} tokens, {copies.mean():.1%} of them follow an earlier copy; loss {plain.mean():.3f}"
    )
    print(f"{'kind':<16} {'with the mean rise':>24} {'with the rise at copies':>26}")
    results = {}
    for kind in scores.kinds:
        values = np.nan_to_num(scores.at(kind=kind).values.ravel())
        (all_r, all_p), (copy_r, copy_p) = (
            rank_correlation(values, cost.ravel()) for cost in (rise, at_copies)
        )
        results[kind] = {"rise": [all_r, all_p], "at_copies": [copy_r, copy_p]}
        print(f"{kind:<16} {all_r:>14.2f} (p {all_p:.4f}) {copy_r:>16.2f} (p {copy_p:.4f})")
    print(json.dumps({"model": args.model, "tokens": len(plain), "correlations": results}))


if __name__ == "__main__":
    main()
