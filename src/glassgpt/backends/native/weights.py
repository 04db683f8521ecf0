"""A model's weights inside the engine."""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgpt.backends.native.library import Library, doubles_at, floats_at, ints, ints_at, load_library
from glassgpt.backends.native.library import kernels as available_kernels
from glassgpt.backends.native.threads import VARIABLE, thread_count
from glassgpt.backends.protocol import LowRankFactors, StoredModel, StoredPanels
from glassgpt.config import Config
from glassgpt.errors import SettingError

# In the order of `Dtype` in cpp/layout.h.
DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
HALF_CACHE = ("float16", "int8", "int4")  # keys and values in float16, far finer than such weights

ACTIVATIONS = {
    "gelu_new": 0, "gelu_pytorch_tanh": 0, "gelu_fast": 0, "gelu": 1, "relu": 2, "silu": 3,
    "swish": 3, "tanh": 4,
}  # fmt: skip
MOST_INPUTS = 1 << 16  # of a matrix: sums of more products of bytes could exceed 32 bits

_MATRICES = {
    "wte.weight": 0,
    "lm_head.weight": 1,
    "attn.c_attn": 2,
    "attn.c_proj": 3,
    "mlp.c_fc": 4,
    "mlp.c_proj": 5,
}
_VECTORS = {"ln_1.weight": 3, "ln_1.bias": 4, "ln_2.weight": 5, "ln_2.bias": 6}


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


class Weights:
    """A model's weights inside the engine, shared by backends with caches of different sizes."""

    def __init__(
        self,
        checkpoint: StoredModel,
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
        self.n_adapters = 0
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
        """A hash of the weights as computed with. Reads the file once more: it is seldom needed."""
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

    def _panels(self, name: str) -> StoredPanels | None:
        """A matrix that the file holds as it is computed with."""
        if self.dtype not in ("int8", "int4") or self._checkpoint.stored_dtype(name) != self.dtype:
            return None
        return self._checkpoint.panels(name, mapped=os.environ.get("GLASSGPT_MMAP", "1") != "0")

    def _packed(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The integers and scales of a matrix, where the file has them and they are computed with."""
        return self._checkpoint.packed(name) if self.dtype in ("int8", "int4") else None

    def add_adapter(self, factors: LowRankFactors) -> int:
        """The number of an adapter, which rows of a cache compute with after `EngineCache.set_adapter`."""
        number = int(self.library.new_adapter(self.handle))
        if number < 0:
            raise self.library.failure()
        for name, (a, b) in factors.items():
            _, layer, part = name.removesuffix(".weight").split(".", 2)
            transposed, b = np.ascontiguousarray(a.T, np.float32), np.ascontiguousarray(b, np.float32)
            self.library.check_result(
                self.library.set_low_rank(
                    self.handle, number, int(layer), _MATRICES[part], len(b), floats_at(transposed),
                    floats_at(b),
                )
            )  # fmt: skip
        self.n_adapters = number
        return number

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

    def _set(self, name: str, checkpoint: StoredModel) -> None:
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
        self, layer: int, which: int, checkpoint: StoredModel, name: str, bias: np.ndarray | None
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

    def _set_panels(self, layer: int, which: int, panels: StoredPanels, bias: np.ndarray | None) -> None:
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


def stored_dtype(checkpoint: StoredModel) -> str:
    """The precision in which the file holds its matrices: nothing loses any unasked."""
    stored = checkpoint.stored_dtype("h.0.mlp.c_fc.weight")
    return stored if stored in DTYPES else "float32"
