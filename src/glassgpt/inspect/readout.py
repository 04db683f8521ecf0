"""What single vectors of the model say in the vocabulary: the lens at one position with the rank of every
token, the rows of the head that a logit is the product with, and what neurons read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from glassgpt.errors import UserError
from glassgpt.inspect.arrays import AnyArray, at_least_float32, like, stack, to_host, to_numpy, top_k
from glassgpt.inspect.forward import make_forward
from glassgpt.inspect.indexing import Array
from glassgpt.model.numpy_gpt2 import NumpyGPT2

if TYPE_CHECKING:
    from glassgpt.inspect.trace import Trace
    from glassgpt.inspect.traceable_model import TraceableModel


class NeuronTokens(NamedTuple):
    """The tokens that excite each neuron most, and those it makes more likely, (n, k) ids each."""

    reads: Array
    writes: Array


def parameter(gpt: TraceableModel, name: str) -> Array:
    """A tensor of the model by OpenAI's name, such as `h.0.mlp.c_fc.weight`, in float32."""
    model: Any = gpt.model
    try:
        return to_numpy(model.weights[name] if isinstance(model, NumpyGPT2) else model.get_parameter(name))
    except (KeyError, AttributeError):
        raise UserError(f"{gpt.name} has no tensor {name}: this part of it is not GPT-2's.") from None


def head_weight(gpt: TraceableModel) -> Array:
    """The matrix of the logits, (V, C): the token embeddings, unless the model has a head of its own."""
    return parameter(gpt, "wte.weight" if gpt.config.tie_word_embeddings else "lm_head.weight")


def times_table(gpt: TraceableModel, name: str, vectors: Array) -> AnyArray:
    """The products of vectors (n, C) with every row of a table (V, C), (n, V), where the model computes."""
    model: Any = gpt.model
    table = model.weights[name] if isinstance(model, NumpyGPT2) else model.get_parameter(name).detach()
    return at_least_float32(like(vectors, table) @ table.T)


def lens_logits_at(gpt: TraceableModel, trace: Trace, position: int) -> Array:
    """The logit lens of every layer at one position, (n_layer + 1, V)."""
    forward = make_forward(gpt.model)
    names = ["embedding", *(f"h.{layer}.resid_post" for layer in range(trace.config.n_layer))]
    streams = stack([stream[position] for stream in trace.tensors(names).values()])  # (n_layer + 1, C)
    return to_numpy(forward.head(forward.final_norm(streams)))[:, : trace.vocabulary.size]


@dataclass(frozen=True)
class LensColumn:
    """The logit lens at one position: each layer's top ids, and the ranks of some tokens in all layers."""

    ids: Array  # (n_layer + 1, k), most likely first
    p: Array  # their probabilities
    tokens: list[int]  # all of these ids once, and those asked for
    ranks: Array  # (len(tokens), n_layer + 1): the rank of each of `tokens`, from 1 on


def lens_column(
    gpt: TraceableModel, trace: Trace, position: int, k: int = 5, tokens: Sequence[int] | None = None
) -> LensColumn:
    """The lens at a position, cell by cell, with the way of some tokens through the layers: by default of all
    that the cells list. (Ranks need the logits of the whole vocabulary, the rest is known from the lens.)"""
    k = min(k, trace.vocabulary.size)
    ids, p = (found[:, 0] for found in trace.lens_top_k(k, position, position))
    every = list(dict.fromkeys(ids.ravel().tolist() if tokens is None else tokens))
    ranks = ranks_of(lens_logits_at(gpt, trace, position), every) if every else np.zeros((0, len(ids)))
    return LensColumn(ids, p, every, ranks)


def ranks_of(logits: Array, tokens: Sequence[int]) -> Array:
    """The rank of tokens in each row of logits, (tokens, rows): one more than there are larger ones."""
    above = [np.searchsorted(np.sort(row), row[list(tokens)], "right") for row in logits]
    ranks: Array = logits.shape[1] - np.stack(above, axis=1) + 1
    return ranks


def neuron_tokens(
    gpt: TraceableModel, layer: int, neurons: Sequence[int], n_tokens: int, k: int = 5
) -> NeuronTokens:
    """What neurons of a block read and write, through the token table.

    A neuron reads a token as far as the token's embedding, at the gain of ln_2, points along its column of
    c_fc. It writes one as far as its row of c_proj, at the gain of ln_f, points along the token's row of the
    head.
    """
    fc, proj = (parameter(gpt, f"h.{layer}.mlp.{name}.weight") for name in ("c_fc", "c_proj"))
    read = fc[:, list(neurons)].T * parameter(gpt, f"h.{layer}.ln_2.weight")  # (n, C)
    write = proj[list(neurons)] * parameter(gpt, "ln_f.weight")  # (n, C)
    # LayerNorm subtracts the mean of its input, so that the mean of a direction is never seen.
    read = read - read.mean(axis=1, keepdims=True)
    if gpt.config.tie_word_embeddings:  # one table for both
        scores = times_table(gpt, "wte.weight", np.concatenate([read, write]))  # (2n, V)
        reads, writes = scores[: len(read)], scores[len(read) :]
    else:
        reads, writes = times_table(gpt, "wte.weight", read), times_table(gpt, "lm_head.weight", write)
    return NeuronTokens(
        *(to_host(top_k(each[:, :n_tokens], min(k, n_tokens))[1]) for each in (reads, writes))
    )
