"""What a trace needs from a model: the forward pass with taps, whole or in parts, without gradients.

`NumpyForward` is the plain pass of model/numpy_gpt2.py; `TorchForward` (torch_forward.py) is that of
model/gpt2.py, on any device. Both show the same steps, and agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from glassgpt.backends.numpy import empty_cache
from glassgpt.config import Config
from glassgpt.inspect.arrays import AnyArray
from glassgpt.model.numpy_gpt2 import NumpyGPT2, attention_scale
from glassgpt.model.tap import within

Tap = Callable[[str, AnyArray], AnyArray]


class Forward(Protocol):
    model: Any

    @property
    def config(self) -> Config: ...

    @property
    def runs_blocks_alone(self) -> bool:
        """Whether a block's output depends only on the stream that enters it."""
        ...

    def embed(self, ids: Sequence[int], tap: Tap) -> AnyArray:
        """The embedding of a text, (1, T, C)."""
        ...

    def hidden(
        self, ids: Sequence[int], tap: Tap | None = None, start: int = 0, cache: Any = None
    ) -> AnyArray:
        """All but the head, (1, T, C), with a cache for tokens at positions from `start` on."""
        ...

    def block(self, layer: int, x: AnyArray, tap: Tap) -> AnyArray:
        """One block, from the stream that enters it to the one that leaves it, (T, C)."""
        ...

    def blocks(
        self, layers: range, x: AnyArray, ids: Sequence[Sequence[int]], taps: Mapping[int, Tap]
    ) -> AnyArray:
        """Consecutive blocks for several texts of one length: from the streams (B, T, C) that enter the first
        to those that leave the last. A tap of a block is shown `attn.z`, not `h.3.attn.z`."""
        ...

    def final_norm(self, x: AnyArray) -> AnyArray:
        """`ln_f` of a stream, (T, C)."""
        ...

    def head(self, x: AnyArray) -> AnyArray:
        """The logits (T, V) of final vectors (T, C)."""
        ...

    def empty_cache(self) -> Any:
        """A KV cache for one text."""
        ...

    def head_row(self, token: int) -> AnyArray:
        """The vector whose product with the final vector is a token's logit, (C,)."""
        ...

    def attention_scale(self, layer: int) -> float:
        """The factor of a block's attention scores: 1 / sqrt(d_head) for most models."""
        ...

    def attention_output(self, layer: int) -> tuple[AnyArray, AnyArray]:
        """The weight (C, C) and bias (C,) of the output projection."""
        ...

    def final_norm_parameters(self) -> tuple[AnyArray, AnyArray]:
        """The weight and bias of `ln_f`, (C,) each."""
        ...

    def at_least_float32(self) -> Forward:
        """This model; in float32 if it is in half precision, which is too coarse for sums."""
        ...


class NumpyForward:
    def __init__(self, model: NumpyGPT2) -> None:
        self.model = model

    @property
    def config(self) -> Config:
        return self.model.config

    @property
    def runs_blocks_alone(self) -> bool:
        return True

    def embed(self, ids: Sequence[int], tap: Tap) -> AnyArray:
        return self.model.embed(np.array([ids]), tap=tap)

    def hidden(
        self, ids: Sequence[int], tap: Tap | None = None, start: int = 0, cache: Any = None
    ) -> AnyArray:
        return self.model.hidden(np.array([ids]), start, cache, tap)

    def block(self, layer: int, x: AnyArray, tap: Tap) -> AnyArray:
        return self.model.block(layer, x[None], tap=within(tap, f"h.{layer}"))[0]

    def blocks(
        self, layers: range, x: AnyArray, ids: Sequence[Sequence[int]], taps: Mapping[int, Tap]
    ) -> AnyArray:
        for layer in layers:
            x = self.model.block(layer, x, tap=taps.get(layer))
        return x

    def final_norm(self, x: AnyArray) -> AnyArray:
        return self.model.layer_norm("ln_f", x)

    def head(self, x: AnyArray) -> AnyArray:
        return self.model.head(x)

    def empty_cache(self) -> Any:
        return empty_cache(self.model, 1, self.config.n_positions)

    def head_row(self, token: int) -> AnyArray:
        return self.model.head_weight[token]

    def attention_scale(self, layer: int) -> float:
        return attention_scale(self.config, layer)

    def attention_output(self, layer: int) -> tuple[AnyArray, AnyArray]:
        name = f"h.{layer}.attn.c_proj"
        return self.model.weights[f"{name}.weight"], self.model.weights[f"{name}.bias"]

    def final_norm_parameters(self) -> tuple[AnyArray, AnyArray]:
        return self.model.weights["ln_f.weight"], self.model.weights["ln_f.bias"]

    def at_least_float32(self) -> NumpyForward:
        return self


def make_forward(model: Any) -> Forward:
    """The forward pass of a `NumpyGPT2`, or of a torch `GPT2`."""
    if isinstance(model, NumpyGPT2):
        return NumpyForward(model)
    from glassgpt.inspect.torch_forward import TorchForward

    return TorchForward(model)
