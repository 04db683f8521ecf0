"""The tokens that neurons read and write, and the rows of the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from glassgpt.errors import UserError
from glassgpt.inspect.arrays import AnyArray, at_least_float32, like, to_host, to_numpy, top_k
from glassgpt.inspect.traces.indexing import Array
from glassgpt.model.numpy_gpt2 import NumpyGPT2

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel


def parameter(gpt: TraceableModel, name: str) -> Array:
    """A tensor of the model by OpenAI's name, such as `h.0.mlp.c_fc.weight`, in float32."""
    model: Any = gpt.model
    try:
        return to_numpy(model.weights[name] if isinstance(model, NumpyGPT2) else model.get_parameter(name))
    except (KeyError, AttributeError):
        raise UserError(f"{gpt.name} has no tensor {name}: this part of it is not GPT-2's.") from None


def head_weight(gpt: TraceableModel) -> Array:
    """The matrix of the logits, (V, C): the token embeddings, unless the model has a separate head."""
    return parameter(gpt, "wte.weight" if gpt.config.tie_word_embeddings else "lm_head.weight")


def times_table(gpt: TraceableModel, name: str, vectors: Array) -> AnyArray:
    """The products of vectors (n, C) with every row of a table (V, C), (n, V), where the model computes."""
    model: Any = gpt.model
    table = model.weights[name] if isinstance(model, NumpyGPT2) else model.get_parameter(name).detach()
    return at_least_float32(like(vectors, table) @ table.T)


class NeuronTokens(NamedTuple):
    """The tokens that excite each neuron most, and those it makes more likely, (n, k) ids each."""

    reads: Array
    writes: Array


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
