"""What single vectors of the model say in the vocabulary: the lens at one position with the rank of every
token, the rows of the head that a logit is the product with, and what neurons read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from glassgpt.errors import UserError
from glassgpt.inspect.arrays import to_numpy
from glassgpt.inspect.indexing import Array
from glassgpt.model.numpy_gpt2 import NumpyGPT2

if TYPE_CHECKING:
    from glassgpt.gpt import GPT
    from glassgpt.inspect.trace import Trace


class NeuronTokens(NamedTuple):
    """The tokens that excite each neuron most, and those it makes more likely, (n, k) ids each."""

    reads: Array
    writes: Array


def parameter(gpt: GPT, name: str) -> Array:
    """A tensor of the model by OpenAI's name, such as `h.0.mlp.c_fc.weight`, in float32."""
    model: Any = gpt.model
    try:
        return to_numpy(model.weights[name] if isinstance(model, NumpyGPT2) else model.get_parameter(name))
    except (KeyError, AttributeError):
        raise UserError(f"{gpt.name} has no tensor {name}: this part of it is not GPT-2's.") from None


def head_weight(gpt: GPT) -> Array:
    """The matrix of the logits, (V, C): the token embeddings, unless the model has a head of its own."""
    return parameter(gpt, "wte.weight" if gpt.config.tie_word_embeddings else "lm_head.weight")


def final_norm(gpt: GPT, x: Array) -> Array:
    """`ln_f` of vectors of the residual stream, (..., C)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + gpt.config.layer_norm_epsilon)
    return np.asarray(centred / spread * parameter(gpt, "ln_f.weight") + parameter(gpt, "ln_f.bias"))


def lens_logits_at(gpt: GPT, trace: Trace, position: int) -> Array:
    """The logit lens of every layer at one position, (n_layer + 1, V)."""
    streams = np.stack([residual[position] for residual in trace.residual])  # (n_layer + 1, C)
    return np.asarray(final_norm(gpt, streams) @ head_weight(gpt).T)[:, : trace.vocabulary.size]


@dataclass(frozen=True)
class LensColumn:
    """The logit lens at one position: each layer's top ids, and the ranks of some tokens in all layers."""

    ids: Array  # (n_layer + 1, k), most likely first
    p: Array  # their probabilities
    tokens: list[int]  # all of these ids once, and those asked for
    ranks: Array  # (len(tokens), n_layer + 1): the rank of each of `tokens`, from 1 on


def lens_column(gpt: GPT, trace: Trace, position: int, k: int = 5, tokens: Sequence[int] = ()) -> LensColumn:
    """The lens at a position, cell by cell, with the way of its tokens through the layers."""
    logits = lens_logits_at(gpt, trace, position)
    ids = top_ids(logits, k)
    p = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(np.float64))
    p = (p / p.sum(axis=1, keepdims=True)).astype(np.float32)
    every = list(dict.fromkeys([*ids.ravel().tolist(), *tokens]))
    ordered = np.sort(logits, axis=1)
    above = [np.searchsorted(row, own[every], "right") for row, own in zip(ordered, logits, strict=True)]
    ranks = logits.shape[1] - np.stack(above, axis=1) + 1  # one more than there are larger ones
    return LensColumn(ids, np.take_along_axis(p, ids, axis=1), every, ranks)


def top_ids(scores: Array, k: int) -> Array:
    """The k largest of each row, largest first: without sorting all of them."""
    k = min(k, scores.shape[1])
    found = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def neuron_tokens(gpt: GPT, layer: int, neurons: Sequence[int], n_tokens: int, k: int = 5) -> NeuronTokens:
    """What neurons of a block read and write, through the token table.

    A neuron reads a token as far as the token's embedding, at the gain of ln_2, points along its column of
    c_fc. It writes one as far as its row of c_proj, at the gain of ln_f, points along the token's row of the
    head.
    """
    read = parameter(gpt, f"h.{layer}.mlp.c_fc.weight")[:, list(neurons)].T * parameter(
        gpt, f"h.{layer}.ln_2.weight"
    )
    write = parameter(gpt, f"h.{layer}.mlp.c_proj.weight")[list(neurons)] * parameter(
        gpt, "ln_f.weight"
    )  # (n, C)
    # LayerNorm subtracts the mean of its input, so that the mean of a direction is never seen.
    reads = (read - read.mean(axis=1, keepdims=True)) @ parameter(gpt, "wte.weight").T  # (n, V)
    writes = write @ head_weight(gpt).T
    return NeuronTokens(top_ids(reads[:, :n_tokens], k), top_ids(writes[:, :n_tokens], k))
