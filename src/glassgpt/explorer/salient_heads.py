"""The heads that show most for a text: where the page opens, and where the guided tour leads."""

from __future__ import annotations

from typing import Any

import numpy as np

from glassgpt.explorer.traces import KEEP_BYTES, CachedTrace, split_words


def salient_heads_json(cached: CachedTrace, position: int) -> dict[str, Any]:
    """The most salient head at a position, and the best example of each plain kind."""
    trace = cached.trace
    weights = np.stack([trace.attention[layer] for layer in range(trace.config.n_layer)])  # (L, H, T, T)
    return {
        "position": position,
        "best": most_salient_head(cached, position, weights[:, :, position]),
        "kinds": example_of_each_kind(weights),
    }


def opening_head(cached: CachedTrace) -> dict[str, Any] | None:
    """Where the page opens: the most salient head at the last token, unless the text is long.

    The patterns of a long text are not in memory, and computing them can take longer than all the rest.
    """
    trace, last = cached.trace, len(cached.trace) - 1
    config = trace.config
    if 4 * config.n_layer * config.n_head * len(trace) ** 2 > KEEP_BYTES:
        return None
    if cached.opening is None:
        rows = [trace.attention[layer][:, last] for layer in range(config.n_layer)]
        cached.opening = most_salient_head(cached, last, np.stack(rows))  # (L, H, T)
    return cached.opening


def most_salient_head(cached: CachedTrace, position: int, rows: np.ndarray) -> dict[str, Any] | None:
    """The head in which a position looks back at one word most, by its attention (L, H, T) in all heads.

    Not counted are the first token, where idle heads rest their attention, the position's own word, and the
    word just before it if there are others: such heads are common.
    """
    words, _ = split_words(cached.model, cached.trace.tokens)
    spans = [(word["first"], word["last"]) for word in words if word["first"] > 0 and word["last"] < position]
    spans = spans[:-1] if len(spans) > 1 else spans
    best: dict[str, Any] | None = None
    for first, last in spans:
        shares = rows[:, :, first : last + 1].sum(axis=-1)  # (L, H)
        layer, head = np.unravel_index(int(shares.argmax()), shares.shape)
        share = float(shares[layer, head])
        if best is None or share > best["share"]:
            best = {"layer": int(layer), "head": int(head), "first": first, "last": last, "share": share}
    return best


def example_of_each_kind(weights: np.ndarray) -> dict[str, Any]:
    """For each plain kind the head with the largest mean share, over the positions that can tell."""
    n_tokens = weights.shape[-1]
    if n_tokens < 3:
        return {}
    rows = np.arange(2, n_tokens)
    kinds = {
        "previous": weights[:, :, rows, rows - 1],
        "first": weights[:, :, rows, 0],
        "self": weights[:, :, rows, rows],
    }
    examples = {}
    for kind, shares in kinds.items():
        means = shares.mean(axis=-1)  # (L, H)
        layer, head = np.unravel_index(int(means.argmax()), means.shape)
        examples[kind] = {"layer": int(layer), "head": int(head), "share": float(means[layer, head])}
    return examples
