"""The operations of a trace, on numpy arrays and on torch tensors (which stay on their device) alike.

Only methods of the tensors are used, so nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgpt.backends.protocol import array_namespace

AnyArray = Any  # a numpy array, or a torch tensor


def concat(parts: Sequence[AnyArray], axis: int = 0) -> AnyArray:
    return array_namespace(*parts).concat(list(parts), axis=axis)


def stack(parts: Sequence[AnyArray]) -> AnyArray:
    return array_namespace(*parts).stack(list(parts))


def append_row(pattern: AnyArray, row: AnyArray) -> AnyArray:
    """Attention weights (H, T, T) and those of the next token, (H, 1, T + 1): (H, T + 1, T + 1)."""
    later = array_namespace(pattern).zeros_like(pattern[..., :1])  # no token looks at a later one
    return concat([concat([pattern, later], axis=-1), row], axis=-2)


def split(x: AnyArray, size: int) -> list[AnyArray]:
    """Pieces of `size` along the first dimension; the last may be shorter."""
    return [x[start : start + size] for start in range(0, max(1, len(x)), size)]


def copy(x: AnyArray) -> AnyArray:
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


def contiguous(x: AnyArray) -> AnyArray:
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()


def like(x: AnyArray, other: AnyArray) -> AnyArray:
    """The values of `x` in the dtype of `other`, and on its device."""
    if isinstance(other, np.ndarray):
        return to_host(x).astype(other.dtype, copy=False)
    return other.new_tensor(x) if isinstance(x, np.ndarray) else x.to(other)


def to_host(x: AnyArray) -> np.ndarray:
    """As a numpy array. numpy has no bfloat16: half precision becomes float32."""
    if isinstance(x, np.ndarray):
        return x
    return np.asarray((x.float() if x.is_floating_point() and x.element_size() < 4 else x).cpu())


def to_numpy(x: AnyArray) -> np.ndarray:
    """float32, on the host."""
    return to_host(x.detach() if hasattr(x, "detach") else x).astype(np.float32, copy=False)


def to_float64(x: AnyArray) -> np.ndarray:
    """float64, on the host: not every device has float64."""
    return to_host(x.detach() if hasattr(x, "detach") else x).astype(np.float64)


def double(x: AnyArray) -> AnyArray:
    """In float64, on the same device if that has float64."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float64)
    return x if x.is_mps else x.double()


def at_least_float32(x: AnyArray) -> AnyArray:
    return x if x.dtype.itemsize >= 4 else x.float()


def norm(x: AnyArray) -> AnyArray:
    """The length of the vectors along the last dimension."""
    x = at_least_float32(x)
    return np.linalg.norm(x, axis=-1) if isinstance(x, np.ndarray) else x.norm(dim=-1)


def log_softmax(logits: AnyArray) -> AnyArray:
    """Over the last dimension, in float32 or better."""
    logits = at_least_float32(logits)
    if not isinstance(logits, np.ndarray):
        return logits.log_softmax(dim=-1)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def top_k(x: AnyArray, k: int) -> tuple[AnyArray, AnyArray]:
    """The k largest values along the last dimension, largest first, and their indices."""
    if not isinstance(x, np.ndarray):
        top = x.topk(k, dim=-1)
        return top.values, top.indices
    indices = np.sort(np.argpartition(x, -k, axis=-1)[..., -k:], axis=-1)  # of equals, the lower id first
    values = np.take_along_axis(x, indices, -1)
    order = np.argsort(-values, axis=-1, kind="stable")
    return np.take_along_axis(values, order, -1), np.take_along_axis(indices, order, -1)


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """The indices of the k largest values of a vector, largest first, of equals the lower index: as by a
    stable sort, but without sorting a whole vocabulary."""
    order, candidates = -x, np.arange(len(x))
    if k < len(x):
        candidates = np.flatnonzero(~(order > np.partition(order, k - 1)[k - 1]))
    return np.asarray(candidates[np.argsort(order[candidates], kind="stable")[:k]])


def kl_divergence(log_p: AnyArray, log_q: AnyArray) -> AnyArray:
    """KL(p || q) in nats over the last dimension; tokens with p = 0 add nothing."""
    if not isinstance(log_p, np.ndarray):
        from glassgpt.inspect.divergence import kl_divergence

        return kl_divergence(log_p, like(log_q, log_p))
    with np.errstate(invalid="ignore"):  # 0 times infinity, which where() drops
        terms = np.where(log_p > -np.inf, np.exp(log_p) * (log_p - like(log_q, log_p)), 0.0)
    return terms.sum(-1).clip(min=0)  # rounding may make it slightly negative
