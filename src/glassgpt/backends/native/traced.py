"""GPT-2 in numpy whose blocks and head the compiled engine computes: traces where torch is not installed.

The steps are those of model/numpy_gpt2.py, to rounding: no number differs by more than a few millionths of
the largest of its step. With the shipped model a trace of 32 tokens takes a third of numpy's time.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, c_float, c_int, c_void_p
from typing import Any

import numpy as np

from glassgpt.backends.native.backend import EXACT_PARTS
from glassgpt.backends.native.library import floats_at
from glassgpt.backends.native.weights import Weights
from glassgpt.model.numpy_gpt2 import Array, NumpyGPT2, Tap

# As in inspect/taps.py and `BlockStep` in cpp/engine.h.
STEPS = (
    "ln_1", "attn.q", "attn.k", "attn.v", "attn.scores", "attn.scaled", "attn.masked", "attn.weights",
    "attn.z", "attn.merged", "attn.proj", "resid_mid", "ln_2", "mlp.fc", "mlp.gelu", "mlp.proj", "resid_post",
)  # fmt: skip
WITH_HEADS = range(STEPS.index("attn.q"), STEPS.index("attn.z") + 1)
KEYS, VALUES = STEPS.index("attn.k"), STEPS.index("attn.v")
HEAD = 1  # as `glassgpt_set_matrix` numbers the matrices
PANEL = 64  # rows of logits are padded to whole panels (cpp/layout.h)

# step, first head, heads, values, rows, columns, numbers from one row to the next
ENGINE_TAP = CFUNCTYPE(None, c_void_p, c_int, c_int, c_int, POINTER(c_float), c_int, c_int, c_int)


class EngineGPT2(NumpyGPT2):
    """The numpy model with an engine that has the same weights."""

    def __init__(self, plain: NumpyGPT2, engine: Weights) -> None:
        super().__init__(plain.config, plain.weights)
        self.engine = engine

    def block(
        self, layer: int, x: Array, start: int = 0, past: Array | None = None, tap: Tap | None = None
    ) -> Array:
        if start > 0 or len(x) != 1:  # keys and values before these are in numpy's cache
            return super().block(layer, x, start, past, tap)
        return self._run(layer, np.array(x[0], np.float32, order="C"), past, tap)[None]

    def _run(self, layer: int, stream: Array, past: Array | None, tap: Tap | None) -> Array:
        """The stream (T, C) that leaves the block; it enters in the same memory."""
        problems: list[BaseException] = []

        def see(_: Any, step: int, first: int, heads: int, at: Any, rows: int, columns: int, ld: int) -> None:
            if problems:
                return
            values = np.ctypeslib.as_array(at, (heads, rows, ld))[..., :columns]
            try:
                shown = values if step in WITH_HEADS else values[0]
                if past is not None and step in (KEYS, VALUES):
                    past[step - KEYS, 0, :, :rows] = shown
                if tap is not None:
                    given = shown.copy()[None]
                    changed = tap(STEPS[step], given)
                    if changed is not given:
                        shown[...] = changed[0]
            except BaseException as problem:  # it cannot pass through C
                problems.append(problem)

        wanted = (1 << len(STEPS)) - 1 if tap is not None else (1 << KEYS | 1 << VALUES) * (past is not None)
        library = self.engine.library
        library.check_result(
            library.block(
                self.engine.handle, None, layer, 0, len(stream), floats_at(stream), wanted,
                self.config.n_head, ENGINE_TAP(see), None, EXACT_PARTS,
            )
        )  # fmt: skip
        if problems:
            raise problems[0]
        return stream

    def head(self, x: Array, tap: Tap | None = None) -> Array:
        vectors = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
        if not len(vectors):
            return super().head(x, tap)
        V = self.config.vocab_size
        padded = -(-V // PANEL) * PANEL
        out = np.empty((len(vectors), padded), np.float32)
        library = self.engine.library
        library.check_result(
            library.times(
                self.engine.handle, -1, HEAD, len(vectors), floats_at(vectors), floats_at(out), padded,
                EXACT_PARTS,
            )
        )  # fmt: skip
        logits = out[:, :V].reshape(*x.shape[:-1], V)
        return logits if tap is None else tap("logits", logits)
