"""Transposed matrices: `nn.Linear` and llm.c store (out, in), GPT-2 (in, out)."""

from __future__ import annotations

import numpy as np

from glassgpt.weights.checkpoint import Array, LazyTensor

_LINEAR = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def is_linear(name: str) -> bool:
    """Whether the tensor is one of the four matrices of a block (embeddings are look-up tables)."""
    return name.startswith("h.") and name.endswith(_LINEAR)


def transposed(tensor: LazyTensor) -> LazyTensor:
    """The matrix, transposed when it is read."""

    def read() -> Array:
        return np.ascontiguousarray(tensor.read().T)

    return LazyTensor(tensor.shape[::-1], tensor.dtype, read)
