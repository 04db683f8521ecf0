"""`gpt.weights`: the model's matrices by TransformerLens' names, one per head, as numpy float32 arrays.

OpenAI's checkpoint keeps the queries, keys and values of all heads in one matrix, `c_attn` (C, 3 C). Here
each head has its own, so that (T, C) rows of a stream, after `ln_1`, give its queries: `x @ W_Q[5, 3] +
b_Q[5, 3]` (T, D). They are the weights of the checkpoint: no LayerNorm is folded in, and nothing is centered.

Dimensions: L layers, H heads, C = n_embd, D = d_head, M = the MLP's width, V vocabulary, P positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import StepIndexError, UserError
from glassgpt.inspect.arrays import to_numpy
from glassgpt.inspect.taps import check_index
from glassgpt.model.numpy_gpt2 import NumpyGPT2

Array = np.ndarray
Read = Callable[[int], Array]  # the array of a layer


class LayerWeights:
    """A weight of every layer: `W_Q[5]` is (H, C, D), `W_Q[5, 3]` is (C, D), `W_Q[:]` is (L, H, C, D).

    A layer is read when it is asked for; `numpy.asarray` reads all.
    """

    def __init__(self, name: str, dims: str, shape: tuple[int, ...], read: Read) -> None:
        self.name, self.dims, self.shape = name, dims, shape
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return map(self._read, range(len(self)))

    def __getitem__(self, index: Any) -> Array:
        layer, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(layer, slice):
            layers = range(len(self))[layer]
            values = np.stack([self._read(i) for i in layers]) if layers else np.zeros((0, *self.shape[1:]))
            rest = [slice(None), *rest]
        else:
            values = self._read(check_index("layer", layer, len(self)))
        try:
            part: Array = values[tuple(rest)]
        except IndexError as error:
            raise StepIndexError(f"{self.name} is {self.shape}, {self.dims}: {error}.") from None
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:] if dtype is None else self[:].astype(dtype)

    def __repr__(self) -> str:
        return f"<{self.name} {self.shape}: {', '.join(self.dims)}>"


class ModelWeights:
    """The weights of a model, from numpy or torch."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.config: Config = model.config

    @property
    def W_E(self) -> Array:
        """(V, C): the token embeddings."""
        return self._vector("wte.weight")

    @property
    def W_pos(self) -> Array:
        """(P, C): the position embeddings."""
        if not self.config.has_wpe:
            raise UserError(
                f"a model with attention {self.config.attention!r} has no position embeddings here."
            )
        return self._vector("wpe.weight")

    @property
    def W_U(self) -> Array:
        """(C, V): the head. Most models share it with `W_E`; there is no bias."""
        return self._vector(
            "wte.weight" if "lm_head.weight" not in self.config.shapes() else "lm_head.weight"
        ).T

    @property
    def W_Q(self) -> LayerWeights:
        """(L, H, C, D)"""
        return self._heads("W_Q", 0)

    @property
    def W_K(self) -> LayerWeights:
        """(L, H, C, D)"""
        return self._heads("W_K", 1)

    @property
    def W_V(self) -> LayerWeights:
        """(L, H, C, D)"""
        return self._heads("W_V", 2)

    @property
    def b_Q(self) -> LayerWeights:
        """(L, H, D)"""
        return self._head_biases("b_Q", 0)

    @property
    def b_K(self) -> LayerWeights:
        """(L, H, D)"""
        return self._head_biases("b_K", 1)

    @property
    def b_V(self) -> LayerWeights:
        """(L, H, D)"""
        return self._head_biases("b_V", 2)

    @property
    def W_O(self) -> LayerWeights:
        """(L, H, D, C): what each head writes to the residual stream; `W_V[5, 3] @ W_O[5, 3]` is its OV."""
        config = self.config
        shape = (config.n_head, config.d_head, config.n_embd)
        return self._layers("W_O", "HDC", shape, lambda i: self._linear(i, "attn.c_proj")[0].reshape(shape))

    @property
    def b_O(self) -> LayerWeights:
        """(L, C): the output projection's, which belongs to no head"""
        return self._layers("b_O", "C", (self.config.n_embd,), lambda i: self._linear(i, "attn.c_proj")[1])

    @property
    def W_in(self) -> LayerWeights:
        """(L, C, M): column n is what neuron n reads"""
        shape = (self.config.n_embd, self.config.d_mlp)
        return self._layers("W_in", "CM", shape, lambda i: self._linear(i, "mlp.c_fc")[0])

    @property
    def b_in(self) -> LayerWeights:
        """(L, M)"""
        return self._layers("b_in", "M", (self.config.d_mlp,), lambda i: self._linear(i, "mlp.c_fc")[1])

    @property
    def W_out(self) -> LayerWeights:
        """(L, M, C): row n is what neuron n writes"""
        shape = (self.config.d_mlp, self.config.n_embd)
        return self._layers("W_out", "MC", shape, lambda i: self._linear(i, "mlp.c_proj")[0])

    @property
    def b_out(self) -> LayerWeights:
        """(L, C)"""
        return self._layers("b_out", "C", (self.config.n_embd,), lambda i: self._linear(i, "mlp.c_proj")[1])

    def __repr__(self) -> str:
        return (
            "ModelWeights(W_E, W_pos, W_Q, W_K, W_V, W_O, W_in, W_out, W_U; b_Q, b_K, b_V, b_O, b_in, b_out)"
        )

    def _heads(self, name: str, which: int) -> LayerWeights:
        C, H, D = self.config.n_embd, self.config.n_head, self.config.d_head

        def read(layer: int) -> Array:
            weight = self._linear(layer, "attn.c_attn")[0].reshape(C, 3, H, D)[:, which]  # (C, H, D)
            return np.ascontiguousarray(weight.transpose(1, 0, 2))

        return self._layers(name, "HCD", (H, C, D), read)

    def _head_biases(self, name: str, which: int) -> LayerWeights:
        shape = (self.config.n_head, self.config.d_head)
        return self._layers(
            name, "HD", shape, lambda i: self._linear(i, "attn.c_attn")[1].reshape(3, *shape)[which]
        )

    def _layers(self, name: str, dims: str, shape: tuple[int, ...], read: Read) -> LayerWeights:
        return LayerWeights(name, f"L{dims}", (self.config.n_layer, *shape), read)

    def _vector(self, name: str) -> Array:
        if isinstance(self._model, NumpyGPT2):
            return np.asarray(self._model.weights[name], np.float32)
        return to_numpy(self._model.get_parameter(name).detach())

    def _linear(self, layer: int, name: str) -> tuple[Array, Array]:
        """The weight (in, out) and bias of a block's matrix; with LoRA, those of the sum."""
        name = f"h.{layer}.{name}"
        if isinstance(self._model, NumpyGPT2):
            return self._vector(f"{name}.weight"), self._vector(f"{name}.bias")
        from glassgpt.inspect.torch_forward import weight_and_bias

        width = self.config.d_mlp if name.endswith("mlp.c_proj") else self.config.n_embd
        weight, bias = weight_and_bias(self._model.get_submodule(name), width)
        return to_numpy(weight.detach()), to_numpy(bias.detach())
