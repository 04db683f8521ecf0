"""The modes of running a model. Each returns, for every text, the values at every place it can see.

Most use the protocol of `backends/protocol.py`, so any backend can be checked, and see logits. Those in
`LAYER_CHECKS` look into the torch model (layer_modes.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glassgpt.backends.protocol import Backend, ScoreRequest
from glassgpt.inspect.arrays import to_float64
from glassgpt.verify.reference import Texts, Values

STEPS = 6  # how many of them are decoded one by one where the cache is checked
CHUNK = 5  # tokens per call where a prompt is read in chunks
Run = Callable[[Backend, Texts], list[Values]]


def ragged_logits(backend: Backend, texts: Texts) -> list[Values]:
    """All logits of texts of unequal lengths in one call."""
    every = backend.logits(texts)  # (B, longest, V)
    return [{"logits": to_float64(logits[: len(text)])} for logits, text in zip(every, texts, strict=True)]


def chunked_prefill(backend: Backend, texts: Texts) -> list[Values]:
    """Every text read into its row a few tokens at a time, the rows at different positions."""
    cached = backend.with_rows(len(texts))
    read = [0] * len(texts)
    out: list[list[np.ndarray]] = [[] for _ in texts]
    while rows := [row for row, text in enumerate(texts) if read[row] < len(text)]:
        tokens = [texts[row][read[row] : read[row] + CHUNK + row] for row in rows]
        logits = cached.extend(rows, tokens, [read[row] for row in rows], "all")
        ends = np.cumsum([len(some) for some in tokens])[:-1]
        for row, values in zip(rows, np.split(to_float64(logits), ends), strict=True):
            out[row].append(values)
            read[row] += len(values)
    return [{"logits": np.concatenate(parts)} for parts in out]


def scored(backend: Backend, texts: Texts) -> list[Values]:
    """The log-probability of every token but the first, as evaluation computes it."""
    long = [i for i, text in enumerate(texts) if len(text) > 1]
    groups = [[ScoreRequest(np.array(texts[i], np.int64), 1)] for i in long]
    seen: list[dict[str, np.ndarray]] = [{} for _ in texts]
    for keys, scores in backend.score(groups):
        for (group, _), token_scores in zip(keys, scores, strict=True):
            seen[long[group]]["logprobs"] = to_float64(token_scores.logprobs)[:, None]  # (T - 1, 1)
    return list(seen)


def many_rows(backend: Backend, texts: Texts) -> list[Values]:
    """The engine with every text in two rows: on a GPU more than a few rows take another captured step."""
    twice = through_engine(backend, [*texts, *texts])
    both = zip(twice[: len(texts)], twice[len(texts) :], strict=True)
    return [{"logits": np.stack([one["logits"], other["logits"]])} for one, other in both]  # (2, T, V)


def through_engine(backend: Backend, texts: Texts) -> list[Values]:
    """As the engine does it: read all but the end of each text, then decode all of them together."""
    cached = backend.with_rows(len(texts))
    read = [max(1, len(text) - STEPS) for text in texts]
    first = cached.extend(range(len(texts)), [text[:n] for text, n in zip(texts, read, strict=True)])
    out = [[to_float64(logits)] for logits in first]  # for each text a list of (V,)
    while rows := [row for row, text in enumerate(texts) if read[row] < len(text)]:
        new = np.array([texts[row][read[row]] for row in rows])
        logits = cached.decode(rows, cached.array(new), [read[row] for row in rows])  # (rows, V)
        for row, values in zip(rows, logits, strict=True):
            out[row].append(to_float64(values))
            read[row] += 1
    return [{"logits": np.stack(rows)} for rows in out]


def layer_check(name: str) -> Run:
    """A mode of layer_modes.py, which needs torch."""

    def run(backend: Backend, texts: Texts) -> list[Values]:
        from glassgpt.verify import layer_modes

        values: list[Values] = getattr(layer_modes, name)(backend, texts)
        return values

    return run


LAYER_CHECKS: dict[str, Run] = {
    "each text alone": layer_check("alone"),
    "attention step by step": layer_check("explicit"),
    "prefill, then decode": layer_check("cached"),
    "batch of equals": layer_check("batched"),
    "left padding": layer_check("left_padded"),
    "right padding": layer_check("right_padded"),
}
CHECKS: dict[str, Run] = {
    **LAYER_CHECKS,
    "engine, unequal lengths": through_engine,
    "engine, twice the rows": many_rows,
    "prefill in chunks": chunked_prefill,
    "ragged batch": ragged_logits,
    "scores": scored,
}  # for each device and dtype


def checks_of(backend: str) -> list[str]:
    return [name for name in CHECKS if backend == "torch" or name not in LAYER_CHECKS]
