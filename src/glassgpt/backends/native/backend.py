"""The native backend: the protocol of `glassgpt.backends.protocol` on the compiled engine."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from ctypes import c_void_p
from typing import Any

import numpy as np

from glassgpt.backends.native.cache import CACHE_DTYPES, EngineCache
from glassgpt.backends.native.library import ints, load_library
from glassgpt.backends.native.weights import Weights
from glassgpt.backends.protocol import (
    Array,
    HostArrays,
    LowRankFactors,
    ScoredBatch,
    ScoreRequest,
    StoredModel,
    TokenScores,
    WantedLogits,
    check_adapter,
    check_ids,
    check_places,
    check_requests,
    check_rows,
    check_texts,
    shared_length,
)
from glassgpt.errors import SettingError, UserError

# In how many bytes the activations that meet int8 or int4 weights are rounded. One is fastest: tokens are
# drawn from its logits. Three are as fine as float32: log-probabilities are reported from theirs.
FAST_PARTS, EXACT_PARTS = 1, 3

SCORE_ROWS = 16  # texts that are scored together
SCORE_TOKENS = 2048  # and their tokens, at most


def is_available() -> bool:
    """Whether the engine was built and can be loaded."""
    return why_unavailable() is None


def why_unavailable() -> str | None:
    """Why the engine cannot be loaded, and what to type; None if it can."""
    try:
        load_library()
    except UserError as problem:
        return str(problem)
    return None


class NativeBackend(HostArrays):
    """Implements `glassgpt.backends.protocol.Backend` on CPUs."""

    # What reading several tokens at once takes, as `generate.speculation.Cost` says it. Measured with the
    # shipped model on two cores: 1.15 steps for 4 tokens, 1.3 for 6, 1.7 for 8, 4 for 16.
    verify_cost = (0.8, 0.1, 3, 7, 0.08, 0.2)

    def __init__(
        self,
        weights: Weights,
        rows: int = 1,
        context: int | None = None,
        cache_dtype: str | None = None,
        parts: int = FAST_PARTS,
    ) -> None:
        if cache_dtype is not None and cache_dtype not in CACHE_DTYPES:
            raise SettingError(
                f"cache_dtype {cache_dtype!r} is not one of {', '.join(CACHE_DTYPES)}. Leave it out."
            )
        check_rows(rows)
        self.weights = weights
        self.cache_dtype = weights.cache_dtype if cache_dtype is None else cache_dtype
        self.exact_cache_dtype = "float32" if cache_dtype is None else cache_dtype  # as the user said
        self._asked_cache_dtype = cache_dtype
        self.parts = parts
        self.config = weights.config
        self.dtype = weights.dtype
        self.rows = rows
        self.context = self.config.n_positions if context is None else min(context, self.config.n_positions)
        self._cache = EngineCache(weights, rows, self.context, self.cache_dtype, parts)
        self._scratch: EngineCache | None = None  # for scores and logits, which leave the cache alone

    @classmethod
    def load(
        cls,
        checkpoint: StoredModel,
        *,
        device: str | None = None,
        dtype: str | None = None,
        cache_dtype: str | None = None,
    ) -> NativeBackend:
        """A backend from a file's contents, by default in the precision of the file.

        The cache is float32, or float16 where the weights are coarser than that. int8 takes half the memory
        of float16, and a long context is read faster.
        """
        return cls(Weights(checkpoint, device=device, dtype=dtype), cache_dtype=cache_dtype)

    def with_rows(self, rows: int) -> NativeBackend:
        return NativeBackend(self.weights, rows, self.context, self._asked_cache_dtype, self.parts)

    def add_adapter(self, factors: LowRankFactors) -> int:
        return self.weights.add_adapter(factors)

    def set_adapter(self, row: int, number: int) -> None:
        check_adapter(self.rows, self.weights.n_adapters, row, number)
        self._cache.set_adapter(row, number)

    @property
    def is_rounded(self) -> bool:
        """Whether activations or the cache are coarser than float32, which is faster."""
        in_bytes = self.dtype in ("int8", "int4") and self.parts < EXACT_PARTS
        return in_bytes or self.cache_dtype != self.exact_cache_dtype

    def exact_backend(self) -> NativeBackend:
        """The same with activations and cache as fine as float32; a cache_dtype that was asked for stays.

        A step of one text takes up to 1.4 times as long, a long prompt twice.
        """
        return NativeBackend(self.weights, self.rows, self.context, self.exact_cache_dtype, EXACT_PARTS)

    def extend(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int] | None = None,
        logits: WantedLogits = "last",
    ) -> Array:
        check_ids(tokens, self.config.vocab_size)
        starts = [0] * len(rows) if starts is None else starts
        return self._cache.forward(rows, starts, tokens, logits)

    def decode(self, rows: Sequence[int], ids: Array, positions: Sequence[int]) -> Array:
        return self._cache.forward(rows, positions, list(np.asarray(ids).reshape(-1, 1)), "last")

    def draw_tokens(
        self,
        logits: np.ndarray,
        params: Any,
        uniform: np.ndarray,
        edits: Any = None,
        allowed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `generate.sampling.draw_tokens` draws, with all its settings, in C++: see cpp/sampling.cpp."""
        count, vocab_size = logits.shape
        if logits.dtype != np.float32 or logits.strides[1] != logits.itemsize:
            logits = np.ascontiguousarray(logits, np.float32)
        alternatives = -1 if params.alternatives is None else params.alternatives
        tokens = np.empty(count, np.int64)
        report = np.empty((count, 1 if alternatives < 0 else 2 + 2 * alternatives))
        uniform = np.ascontiguousarray(uniform)
        filters = (c_void_p * len(params.filters))(*map(_at, params.filters))
        library = self.weights.library
        library.check_result(
            library.draw(
                self.weights.handle, count, vocab_size, logits.ctypes.data, logits.strides[0] // 4,
                *map(_at, (uniform, params.temperature, params.top_k)), len(filters), filters,
                0 if edits is None else edits.ids.shape[1],
                *map(_at, (None, None, None) if edits is None else edits),
                _at(allowed), 0 if allowed is None else allowed.shape[1],
                alternatives, _at(tokens), _at(report),
            )
        )  # fmt: skip
        return tokens, report

    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        everyone = [source, *rows]
        check_places(self, everyone, [0] * len(everyone), [length] * len(everyone))
        self._cache.copy(source, rows, length)

    def score(
        self, groups: Sequence[Sequence[ScoreRequest]], excluded: Sequence[int] = ()
    ) -> Generator[ScoredBatch, None, None]:
        check_requests(groups, excluded, self.config)
        excluded_ids = ints(sorted(excluded))
        for number, group in enumerate(groups):
            before_first = (
                min((request.first for request in group), default=1) - 1
            )  # it predicts a scored token
            shared = 0 if len(group) < 2 else min(shared_length(group), before_first)
            for some in _in_batches(group, shared):
                scores = self._score([group[i] for i in some], shared, excluded_ids)
                yield [(number, i) for i in some], scores

    def _score(
        self, requests: list[ScoreRequest], shared: int, excluded_ids: np.ndarray
    ) -> list[TokenScores]:
        """Read what the requests have in common once, then all endings together."""
        cache = self._scratch_cache(len(requests))
        rows = list(range(len(requests)))
        if shared:
            cache.forward([0], [0], [requests[0].ids[:shared]], "none")
            cache.copy(0, rows[1:], shared)
        texts = [request.ids[shared:-1] for request in requests]
        targets = [
            np.where(np.arange(shared + 1, len(request.ids)) >= request.first, request.ids[shared + 1 :], -1)
            for request in requests
        ]
        logprobs, most_likely, allowed = cache.score(rows, [shared] * len(rows), texts, targets, excluded_ids)
        results, end = [], 0
        for request, text in zip(requests, texts, strict=True):
            end += len(text)
            some = slice(end - (len(request.ids) - request.first), end)
            wanted = request.ids[request.first :]
            is_allowed = np.zeros(len(wanted), bool)
            if request.exclude:
                is_allowed[0] = allowed[some][0] == wanted[0]
            results.append(TokenScores(logprobs[some], most_likely[some] == wanted, is_allowed))
        return results

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        check_texts(batch, self.config)
        longest = max(len(ids) for ids in batch)
        logits = np.zeros((len(batch), longest, self.config.vocab_size), np.float32)
        cache = self._scratch_cache(1)
        for out, ids in zip(logits, batch, strict=True):
            out[: len(ids)] = cache.forward([0], [0], [ids], "all")
        return logits

    def fingerprint(self) -> str:
        own = self.weights.fingerprint
        return own if self.cache_dtype == self.weights.cache_dtype else f"{self.cache_dtype}-{own}"

    def _scratch_cache(self, rows: int) -> EngineCache:
        if self._scratch is None or self._scratch.rows < rows:
            positions = self.config.n_positions
            self._scratch = EngineCache(self.weights, rows, positions, self.exact_cache_dtype, EXACT_PARTS)
        return self._scratch


def _at(values: np.ndarray | None) -> int | None:
    """The address of a contiguous array."""
    return None if values is None else values.ctypes.data


def _in_batches(group: Sequence[ScoreRequest], shared: int) -> Generator[list[int], None, None]:
    """Numbers of requests that are read together."""
    batch: list[int] = []
    tokens = 0
    for i, request in enumerate(group):
        length = len(request.ids) - shared
        if batch and (len(batch) == SCORE_ROWS or tokens + length > SCORE_TOKENS):
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += length
    if batch:
        yield batch
