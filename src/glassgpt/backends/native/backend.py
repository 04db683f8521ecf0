"""The native backend: the protocol of `glassgpt.backends.protocol` on the compiled engine."""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
import weakref
from collections.abc import Generator, Sequence
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.backends.native.library import Library, doubles_at, floats_at, ints, ints_at, load_library
from glassgpt.backends.native.library import kernels as available_kernels
from glassgpt.backends.native.threads import VARIABLE, thread_count
from glassgpt.backends.protocol import (
    Array,
    HostArrays,
    ScoredBatch,
    ScoreRequest,
    TokenScores,
    WantedLogits,
    check_ids,
    check_lengths,
    check_requests,
    check_texts,
)
from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError

if TYPE_CHECKING:
    from glassgpt.weights.checkpoint import Checkpoint
    from glassgpt.weights.panels import Panels

# In the order of `Dtype` in cpp/layout.h.
DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
CACHE_DTYPES = ("float32", "float16", "int8")  # int8: with a scale for every key and value vector of a head
HALF_CACHE = ("float16", "int8", "int4")  # keys and values in float16, far finer than such weights

ACTIVATIONS = {
    "gelu_new": 0, "gelu_pytorch_tanh": 0, "gelu_fast": 0, "gelu": 1, "relu": 2, "silu": 3,
    "swish": 3, "tanh": 4,
}  # fmt: skip
MOST_INPUTS = 1 << 16  # of a matrix: sums of more products of bytes could exceed 32 bits

_PANEL = 64
_WANTED = {"none": 0, "last": 1, "all": 2}
_MATRICES = {
    "wte.weight": 0,
    "lm_head.weight": 1,
    "attn.c_attn": 2,
    "attn.c_proj": 3,
    "mlp.c_fc": 4,
    "mlp.c_proj": 5,
}
_VECTORS = {"ln_1.weight": 3, "ln_1.bias": 4, "ln_2.weight": 5, "ln_2.bias": 6}

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


def why_not(config: Config, device: str | None = None, dtype: str | None = None) -> str | None:
    """Why the native engine cannot run such a model, or None."""
    if device not in (None, "cpu"):
        return f"it runs on the CPU, not on {device!r}"
    if dtype is not None and dtype not in DTYPES:
        return f"it has no dtype {dtype!r}, only {', '.join(DTYPES)}"
    if config.attention != Config.attention:
        return f"it has no attention {config.attention!r}"
    if max(config.n_embd, config.d_mlp) > MOST_INPUTS or max(config.vocab_size, config.n_positions) > 1 << 24:
        return "the model is too wide for it"
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
        self.weights = weights
        self.cache_dtype = weights.cache_dtype if cache_dtype is None else cache_dtype
        self.exact_cache_dtype = "float32" if cache_dtype is None else cache_dtype  # as the user said
        self._asked_cache_dtype = cache_dtype
        self.parts = parts
        self.config = weights.config
        self.dtype = weights.dtype
        self.rows = rows
        self.context = self.config.n_positions if context is None else min(context, self.config.n_positions)
        self._cache = _Cache(weights, rows, self.context, self.cache_dtype, parts)
        self._scratch: _Cache | None = None  # for scores and logits, which leave the cache alone

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        device: str | None = None,
        dtype: str | None = None,
        cache_dtype: str | None = None,
    ) -> NativeBackend:
        """A backend from a file's contents, by default in the precision of the file.

        The cache is float32, or float16 beside weights that are coarser than that. int8 takes half the memory
        of float16, and a long context is read faster.
        """
        return cls(Weights(checkpoint, device=device, dtype=dtype), cache_dtype=cache_dtype)

    def with_rows(self, rows: int) -> NativeBackend:
        return NativeBackend(self.weights, rows, self.context, self._asked_cache_dtype, self.parts)

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
        self._cache.copy(source, rows, length)

    def score(
        self, groups: Sequence[Sequence[ScoreRequest]], excluded: Sequence[int] = ()
    ) -> Generator[ScoredBatch, None, None]:
        check_requests(groups, excluded, self.config)
        barred = ints(sorted(excluded))
        for number, group in enumerate(groups):
            shared = _shared_length(group)
            for some in _in_batches(group, shared):
                scores = self._score([group[i] for i in some], shared, barred)
                yield [(number, i) for i in some], scores

    def _score(self, requests: list[ScoreRequest], shared: int, barred: np.ndarray) -> list[TokenScores]:
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
        logprobs, likeliest, allowed = cache.score(rows, [shared] * len(rows), texts, targets, barred)
        found, end = [], 0
        for request, text in zip(requests, texts, strict=True):
            end += len(text)
            some = slice(end - (len(request.ids) - request.first), end)
            wanted = request.ids[request.first :]
            free = np.zeros(len(wanted), bool)
            if request.exclude:
                free[0] = allowed[some][0] == wanted[0]
            found.append(TokenScores(logprobs[some], likeliest[some] == wanted, free))
        return found

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        check_texts(batch, self.config)
        longest = max(len(ids) for ids in batch)
        found = np.zeros((len(batch), longest, self.config.vocab_size), np.float32)
        cache = self._scratch_cache(1)
        for out, ids in zip(found, batch, strict=True):
            out[: len(ids)] = cache.forward([0], [0], [ids], "all")
        return found

    def fingerprint(self) -> str:
        own = self.weights.fingerprint
        return own if self.cache_dtype == self.weights.cache_dtype else f"{self.cache_dtype}-{own}"

    def _scratch_cache(self, rows: int) -> _Cache:
        if self._scratch is None or self._scratch.rows < rows:
            positions = self.config.n_positions
            self._scratch = _Cache(self.weights, rows, positions, self.exact_cache_dtype, EXACT_PARTS)
        return self._scratch


class Weights:
    """A model's weights inside the engine, shared by backends with caches of different sizes."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        kernels: str = "",
    ) -> None:
        config = checkpoint.config
        problem = why_not(config, device, dtype)
        if problem is not None:
            raise SettingError(
                f"the native backend cannot run this: {problem}. Leave the backend out, or use torch."
            )
        self.config = config
        self.dtype = stored_dtype(checkpoint) if dtype is None else dtype
        self.library = load_library()
        self.threads = thread_count() if threads is None else threads
        sizes = ints(
            [
                config.vocab_size, config.n_positions, config.n_embd, config.n_layer, config.n_head,
                config.d_mlp, ACTIVATIONS[config.activation_function],
                config.scale_attn_weights, config.scale_attn_by_inverse_layer_idx,
            ]
        )  # fmt: skip
        self.handle = self.library.new(
            ints_at(sizes), config.layer_norm_epsilon, choose_kernels(kernels).encode(), self.threads
        )
        if not self.handle:
            raise self.library.failure()
        self._mapped: list[np.ndarray] = []  # matrices in a mapped file, for as long as the engine lives
        weakref.finalize(self, _delete, self.library, self.handle, self._mapped)
        wanted, self.threads = self.threads, self.library.threads(self.handle)
        if self.threads < wanted:
            warnings.warn(
                f"the system refused {wanted} threads: the native engine computes with {self.threads}. "
                f"Give it fewer with {VARIABLE}, or the process more memory.",
                stacklevel=2,
            )
        self._checkpoint = checkpoint
        for name in config.shapes():
            self._set(name, checkpoint)
        self.library.check_result(self.library.check(self.handle))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what is computed with these weights. Reads the file once more: it is seldom asked for."""
        hasher = hashlib.sha256(f"{self.config!r} {self.dtype} native, scored in float32".encode())
        for name in self.config.shapes():
            for values in self._stored(name):
                hasher.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        return hasher.hexdigest()[:32]

    def _stored(self, name: str) -> Sequence[np.ndarray]:
        """The arrays of a tensor that are computed with, as its file holds them."""
        packed = self._packed(name)
        if packed is not None:
            return packed
        panels = self._panels(name)
        return [self._checkpoint.tensors[name] if panels is None else panels.data]

    def _panels(self, name: str) -> Panels | None:
        """A matrix that the file holds as it is computed with."""
        if self.dtype not in ("int8", "int4") or self._checkpoint.stored_dtype(name) != self.dtype:
            return None
        return self._checkpoint.panels(name, mapped=os.environ.get("GLASSGPT_MMAP", "1") != "0")

    def _packed(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The integers and scales of a matrix, where the file has them and they are computed with."""
        return self._checkpoint.packed(name) if self.dtype in ("int8", "int4") else None

    @property
    def cache_dtype(self) -> str:
        """Of a cache that nobody chose another for."""
        return "float16" if self.dtype in HALF_CACHE else "float32"

    @property
    def n_bytes(self) -> int:
        """Of the matrices, as every step of a single text reads them."""
        return int(self.library.bytes(self.handle))

    def machine_limits(self, n_bytes: int = 2**28) -> tuple[float, float]:
        """Bytes a second that this machine's memory is read at, and integer operations a second on bytes (a
        product and a sum are two), both by as many threads as the engine has."""
        limits = np.zeros(2)
        self.library.check_result(self.library.limits(self.handle, n_bytes, doubles_at(limits)))
        return float(limits[0]), float(limits[1])

    def _set(self, name: str, checkpoint: Checkpoint) -> None:
        """Hand one tensor to the engine; biases go with their matrices."""
        layer, part = -1, name
        if name.startswith("h."):
            _, number, part = name.split(".", 2)
            layer = int(number)
        if part in _VECTORS or part in ("wpe.weight", "ln_f.weight", "ln_f.bias"):
            which = _VECTORS.get(
                part, ("wpe.weight", "ln_f.weight", "ln_f.bias").index(part) if layer < 0 else -1
            )
            values = np.ascontiguousarray(checkpoint.tensors[name], np.float32)
            self.library.check_result(self.library.set_vector(self.handle, layer, which, floats_at(values)))
        elif not part.endswith(".bias"):
            bias = None
            if layer >= 0:
                bias = np.ascontiguousarray(
                    checkpoint.tensors[f"{name.removesuffix('.weight')}.bias"], np.float32
                )
            which = _MATRICES[part.removesuffix(".weight") if layer >= 0 else part]
            self._set_matrix(layer, which, checkpoint, name, bias)

    def _set_matrix(
        self, layer: int, which: int, checkpoint: Checkpoint, name: str, bias: np.ndarray | None
    ) -> None:
        panels = self._panels(name)
        if panels is not None:
            self._set_panels(layer, which, panels, bias)
            return
        rows = checkpoint.rows_in_file(name) if self.dtype == "int8" and os.name == "posix" else None
        if rows is not None:
            scales = np.ascontiguousarray(rows.scale(), np.float32)
            where = (rows.file.fileno(), rows.begin)
            self.library.check_result(
                self.library.set_file(self.handle, layer, which, *where, floats_at(scales), floats_at(bias))
            )
            return
        packed = self._packed(name)
        scale = None
        if packed is not None:  # (out, in)
            values, scale = np.ascontiguousarray(packed[0]), np.ascontiguousarray(packed[1], np.float32)
            source, strides = "int8", (values.shape[1], 1)
        else:
            values = np.ascontiguousarray(checkpoint.tensors[name])
            if values.dtype.name not in ("float32", "float16", "bfloat16"):
                values = values.astype(np.float32)
            source = values.dtype.name
            out_first = layer < 0  # embeddings are (out, in), the others (in, out)
            strides = (values.shape[1], 1) if out_first else (1, values.shape[1])
        self.library.check_result(
            self.library.set_matrix(
                self.handle, layer, which, DTYPES.index(self.dtype), values.ctypes.data, DTYPES.index(source),
                *strides, floats_at(scale), floats_at(bias),
            )
        )  # fmt: skip

    def _set_panels(self, layer: int, which: int, panels: Panels, bias: np.ndarray | None) -> None:
        data = panels.data if panels.mapped else np.ascontiguousarray(panels.data)
        if panels.mapped:
            self._mapped.append(data)
        self.library.check_result(
            self.library.set_panels(
                self.handle, layer, which, DTYPES.index(panels.dtype), data.ctypes.data, data.nbytes,
                floats_at(panels.scale), floats_at(bias), panels.mapped,
            )
        )  # fmt: skip


def choose_kernels(name: str = "") -> str:
    """Those of $GLASSGPT_KERNELS, or of a name, or the best that this CPU can run."""
    name = os.environ.get("GLASSGPT_KERNELS", "") or name
    available = available_kernels()
    if name and name not in available:
        raise SettingError(
            f"this CPU, or this build, has no kernels {name!r}, only {', '.join(available)}. "
            "Unset GLASSGPT_KERNELS to use the best."
        )
    if available == ["portable"]:
        warnings.warn(
            "the native engine computes without vector instructions, many times slower: this CPU has none "
            "that it knows, or the compiler did not. With a newer one: "
            "python -m glassgpt.backends.native.build",
            stacklevel=2,
        )
    return name or available[-1]


def _delete(library: Library, handle: Any, mapped: list[np.ndarray]) -> None:
    """End the engine before the memory that it borrows."""
    library.delete(handle)
    mapped.clear()


def stored_dtype(checkpoint: Checkpoint) -> str:
    """The precision in which the file holds its matrices: nothing loses any unasked."""
    stored = checkpoint.stored_dtype("h.0.mlp.c_fc.weight")
    return stored if stored in DTYPES else "float32"


class _Cache:
    """The keys and values of some rows, and the calls that read and write them."""

    def __init__(self, weights: Weights, rows: int, context: int, dtype: str, parts: int) -> None:
        self.weights, self.rows = weights, rows
        self.padded = -(-weights.config.vocab_size // _PANEL) * _PANEL
        library = weights.library
        self.handle = library.new_cache(weights.handle, rows, context, DTYPES.index(dtype), parts)
        if not self.handle:
            raise library.failure()
        weakref.finalize(self, library.delete_cache, self.handle)

    def forward(self, rows: Any, starts: Any, tokens: Sequence[Any], wanted: WantedLogits) -> Array:
        """Float32 logits, of whose rows only the first V numbers are handed out."""
        check_lengths(rows, tokens, starts)
        counts, ids = _flat(tokens)
        count = {"none": 0, "last": len(counts), "all": len(ids)}[wanted]
        out = np.empty((count, self.padded), np.float32)
        weights = self.weights
        weights.library.check_result(
            weights.library.forward(
                weights.handle, self.handle, len(counts),
                *map(ints_at, (ints(rows), ints(starts), counts, ids)),
                _WANTED[wanted], floats_at(out), self.padded,
            )
        )  # fmt: skip
        return None if wanted == "none" else out[:, : weights.config.vocab_size]

    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        library, others = self.weights.library, ints(list(rows))
        source, length = ints([source, length]).tolist()
        library.check_result(
            library.copy(self.weights.handle, self.handle, source, len(others), ints_at(others), length)
        )

    def score(
        self, rows: Any, starts: Any, tokens: Sequence[Any], targets: Sequence[np.ndarray], barred: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        counts, ids = _flat(tokens)
        wanted = ints(np.concatenate(targets))
        logprobs = np.zeros(len(ids))
        likeliest, allowed = np.zeros(len(ids), np.int32), np.zeros(len(ids), np.int32)
        weights = self.weights
        weights.library.check_result(
            weights.library.score(
                weights.handle, self.handle, len(counts),
                *map(ints_at, (ints(rows), ints(starts), counts, ids, wanted, barred)), len(barred),
                doubles_at(logprobs), ints_at(likeliest), ints_at(allowed),
            )
        )  # fmt: skip
        return logprobs, likeliest, allowed


def _at(values: np.ndarray | None) -> int | None:
    """The address of a contiguous array."""
    return None if values is None else values.ctypes.data


def _flat(tokens: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens each row gets, and all of them one after the other."""
    return ints([len(ids) for ids in tokens]), ints(np.concatenate([np.asarray(ids) for ids in tokens]))


def _shared_length(group: Sequence[ScoreRequest]) -> int:
    """How many tokens all requests begin with, of those before the first that predicts a scored one."""
    if len(group) < 2:
        return 0
    length = min(request.first for request in group) - 1
    first = group[0].ids
    for request in group[1:]:
        same = first[:length] == request.ids[:length]
        length = length if same.all() else int(same.argmin())
    return length


def _in_batches(group: Sequence[ScoreRequest], shared: int) -> Generator[list[int], None, None]:
    """Numbers of requests that are read together."""
    batch: list[int] = []
    tokens = 0
    for i, request in enumerate(group):
        more = len(request.ids) - shared
        if batch and (len(batch) == SCORE_ROWS or tokens + more > SCORE_TOKENS):
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += more
    if batch:
        yield batch
