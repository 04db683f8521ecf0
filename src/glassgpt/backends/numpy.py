"""The numpy backend: the plain forward pass with a KV cache, for machines where nothing faster is installed.

Every sequence is computed by itself, so its values do not depend on the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from contextlib import nullcontext

import numpy as np

from glassgpt.backends.blas_threads import one_blas_thread
from glassgpt.backends.protocol import (
    Array,
    HostArrays,
    ScoredBatch,
    ScoreRequest,
    StoredModel,
    TokenScores,
    WantedLogits,
    check_ids,
    check_lengths,
    check_places,
    check_requests,
    check_rows,
    check_texts,
)
from glassgpt.errors import NEEDS_TORCH, SettingError
from glassgpt.model.numpy_gpt2 import NumpyGPT2, numpy_class

DTYPES = {"float32": np.float32, "float64": np.float64}
MANY_TOKENS = 32  # whose products are large enough for several threads
CHUNK = 128  # tokens whose logits are held at a time where tokens are scored


class NumpyBackend(HostArrays):
    """Implements `glassgpt.backends.protocol.Backend` in numpy."""

    def __init__(self, model: NumpyGPT2, rows: int = 1, context: int | None = None) -> None:
        check_rows(rows)
        self.model = model
        self.config = config = model.config
        self.rows = rows
        self.context = config.n_positions if context is None else min(context, config.n_positions)
        self.dtype = model.weights["wte.weight"].dtype
        self.cache = empty_cache(model, rows, self.context)

    @classmethod
    def load(
        cls, checkpoint: StoredModel, *, device: str | None = None, dtype: str | None = None
    ) -> NumpyBackend:
        """A backend from a file's contents, in float32 unless `dtype` says otherwise."""
        if device not in (None, "cpu"):
            raise SettingError(f"device {device!r} {NEEDS_TORCH}")
        if dtype is not None and dtype not in DTYPES:
            raise SettingError(f"dtype {dtype!r} {NEEDS_TORCH} The numpy backend has {' and '.join(DTYPES)}.")
        return cls(load_numpy_model(checkpoint, "float32" if dtype is None else dtype))

    def with_rows(self, rows: int) -> NumpyBackend:
        return NumpyBackend(self.model, rows, self.context)

    def extend(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int] | None = None,
        logits: WantedLogits = "last",
    ) -> Array:
        check_lengths(rows, tokens, starts)
        check_ids(tokens, self.config.vocab_size)
        starts = [0] * len(rows) if starts is None else starts
        check_places(self, rows, starts, [len(ids) for ids in tokens])
        outputs = []
        for row, ids, start in zip(rows, tokens, starts, strict=True):
            with one_blas_thread() if len(ids) < MANY_TOKENS else nullcontext():
                x = self.model.hidden(np.array([ids]), start, self.cache[:, :, row : row + 1])[0]  # (T, C)
                if logits != "none":
                    outputs.append(self.model.head(x if logits == "all" else x[-1:]))  # (T or 1, V)
        return None if logits == "none" else np.concatenate(outputs).astype(np.float32, copy=False)

    def decode(self, rows: Sequence[int], ids: Array, positions: Sequence[int]) -> Array:
        return self.extend(rows, list(np.asarray(ids).reshape(-1, 1)), positions)

    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        everyone = [source, *rows]
        check_places(self, everyone, [0] * len(everyone), [length] * len(everyone))
        prefix = self.cache[:, :, source, :, :length].copy()
        for row in rows:
            self.cache[:, :, row, :, :length] = prefix

    def score(
        self, groups: Sequence[Sequence[ScoreRequest]], excluded: Sequence[int] = ()
    ) -> Generator[ScoredBatch, None, None]:
        check_requests(groups, excluded, self.config)
        excluded_ids = np.array(sorted(excluded), np.int64)
        for number, group in enumerate(groups):
            for i, request in enumerate(group):
                yield [(number, i)], [self._score(request, excluded_ids)]

    def _score(self, request: ScoreRequest, excluded_ids: np.ndarray) -> TokenScores:
        ids, first, exclude = request
        x = self.model.hidden(ids[None, :-1])[0, first - 1 :]  # (N, C)
        targets = ids[first:]
        logprobs, greedy = np.zeros(len(targets)), np.zeros(len(targets), bool)
        allowed = np.zeros(len(targets), bool)
        for start in range(0, len(targets), CHUNK):
            some = slice(start, start + CHUNK)
            logits = self.model.head(x[some])  # (chunk, V)
            logprobs[some] = target_logprobs(logits, targets[some])
            greedy[some] = logits.argmax(-1) == targets[some]
            if exclude and start == 0:
                logits[0, excluded_ids] = -np.inf
                allowed[0] = logits[0].argmax() == targets[0]
        return TokenScores(logprobs, greedy, allowed)

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        check_texts(batch, self.config)
        longest = max(len(ids) for ids in batch)
        out = np.zeros((len(batch), longest, self.config.vocab_size), np.float32)
        for row, ids in zip(out, batch, strict=True):
            row[: len(ids)] = self.model(np.array([ids]))[0]
        return out

    def fingerprint(self) -> str:
        hasher = hashlib.sha256(repr(self.config).encode())
        for name, values in self.model.weights.items():
            hasher.update(f"{name} {values.dtype} numpy".encode())
            hasher.update(np.ascontiguousarray(values).tobytes())
        return hasher.hexdigest()[:32]


def load_numpy_model(checkpoint: StoredModel, dtype: str = "float32") -> NumpyGPT2:
    """The numpy model with a checkpoint's weights. What a file holds in this dtype is mapped, not copied."""
    config, tensors = checkpoint.config, checkpoint.tensors
    cls = numpy_class(config)  # before the weights are read: it may not be computable
    return cls(config, {name: np.asarray(tensors[name], DTYPES[dtype]) for name in config.shapes()})


def empty_cache(model: NumpyGPT2, rows: int, context: int) -> np.ndarray:
    config = model.config
    shape = (config.n_layer, 2, rows, config.n_head, context, config.d_head)
    return np.zeros(shape, model.weights["wte.weight"].dtype)


def target_logprobs(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The log-probability of each target, (N,), from the logits (N, V), in float64."""
    best = logits.max(-1, keepdims=True)
    total = np.exp(logits - best).sum(-1, dtype=np.float64)
    at_target = np.take_along_axis(logits, targets[:, None], -1).astype(np.float64)
    return np.asarray((at_target - best)[:, 0] - np.log(total))
