"""The torch model behind a trace (see forward.py)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassgpt.backends.torch.fast_path import has_standard_blocks, is_unmodified
from glassgpt.config import Config
from glassgpt.inspect.forward import Tap
from glassgpt.inspect.taps import split_name
from glassgpt.model.cache import Cache
from glassgpt.model.gpt2 import GPT2, Attention, Block, Projection
from glassgpt.model.tap import within


class TorchForward:
    def __init__(self, model: GPT2) -> None:
        self.model = model

    @property
    def config(self) -> Config:
        return self.model.config

    @property
    def runs_blocks_alone(self) -> bool:
        return has_standard_blocks(self.model)

    @torch.no_grad()
    def embed(self, ids: Sequence[int], tap: Tap) -> Tensor:
        return self.model.embed(self._tensor([ids]), tap=tap)

    @torch.no_grad()
    def hidden(
        self, ids: Sequence[int], tap: Tap | None = None, start: int = 0, cache: Cache | None = None
    ) -> Tensor:
        if cache is not None:
            cache = cache.view(slice(0, 1), start + len(ids))
        positions = self._tensor([range(start, start + len(ids))]) if start else None
        return self.model.hidden(self._tensor([ids]), positions, cache, tap)

    @torch.no_grad()
    def block(self, layer: int, x: Tensor, tap: Tap) -> Tensor:
        out: Tensor = self._block(layer)(x[None], None, None, None, within(tap, f"h.{layer}"))
        return out[0]

    @torch.no_grad()
    def blocks(
        self, layers: range, x: Tensor, ids: Sequence[Sequence[int]], taps: Mapping[int, Tap]
    ) -> Tensor:
        if not layers:
            return x
        if not self.runs_blocks_alone:
            return self._blocks_of_whole_pass(layers, x, ids, taps)
        for layer in layers:
            x = self._block(layer)(x, None, None, None, taps.get(layer))
        return x

    def _blocks_of_whole_pass(
        self, layers: range, x: Tensor, ids: Sequence[Sequence[int]], taps: Mapping[int, Tap]
    ) -> Tensor:
        """For blocks of another kind: the whole pass, with these streams put in before the first block."""
        entry = "embedding" if layers[0] == 0 else f"h.{layers[0] - 1}.resid_post"
        left: list[Tensor] = []

        def tap(name: str, values: Tensor) -> Tensor:
            layer, step = split_name(name)
            if layer is not None and layer in taps:
                values = taps[layer](step, values)
            if name == f"h.{layers[-1]}.resid_post":
                left.append(values)
            return x if name == entry else values

        self.model.hidden(self._tensor(ids), tap=tap)
        return left[0]

    @torch.no_grad()
    def final_norm(self, x: Tensor) -> Tensor:
        normed: Tensor = self.model.ln_f(x)
        return normed

    @torch.no_grad()
    def head(self, x: Tensor) -> Tensor:
        return self.model.head(x)

    def empty_cache(self) -> Cache:
        weight = self.model.wte.weight
        return Cache.empty(self.config, 1, self.config.n_positions, weight.device, weight.dtype)

    def head_row(self, token: int) -> Tensor:
        return head_row(self.model, token)

    def attention_scale(self, layer: int) -> float:
        return float(self._attention(layer).scale)

    def attention_output(self, layer: int) -> tuple[Tensor, Tensor]:
        return weight_and_bias(self._attention(layer).c_proj, self.config.n_embd)

    def final_norm_parameters(self) -> tuple[Tensor, Tensor]:
        return self.model.ln_f.weight, self.model.ln_f.bias

    def at_least_float32(self) -> TorchForward:
        model = at_least_float32(self.model)
        return self if model is self.model else TorchForward(model)

    def _tensor(self, rows: Any) -> Tensor:
        return torch.tensor([list(row) for row in rows], device=self.model.wte.weight.device)

    def _block(self, layer: int) -> Block:
        block = self.model.h[layer]
        assert isinstance(block, Block)
        return block

    def _attention(self, layer: int) -> Attention:
        attention = self._block(layer).attn
        assert isinstance(attention, Attention)
        return attention


def at_least_float32(model: GPT2) -> GPT2:
    """The model in float32 or better: half precision is too coarse for sums and gradients."""
    return model if model.wte.weight.element_size() >= 4 else copy.deepcopy(model).float()


def head_row(model: GPT2, token: int) -> Tensor:
    weight = model.wte.weight if model.lm_head is None else model.lm_head.weight
    return weight[token].detach()  # (C,)


@torch.no_grad()
def weight_and_bias(projection: nn.Module, width: int) -> tuple[Tensor, Tensor]:
    """The weight (width, out) and bias of a linear layer; of one that is more than a matrix (LoRA), computed
    from the unit vectors."""
    if is_unmodified(projection, Projection):
        return projection.weight, projection.bias  # type: ignore[return-value]
    like = next(projection.parameters())
    bias = projection(torch.zeros(1, 1, width).to(like))[0, 0]  # (out,)
    return projection(torch.eye(width).to(like)[None])[0] - bias, bias
