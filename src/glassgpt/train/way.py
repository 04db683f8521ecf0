"""The way a training step is computed: in which numbers, and by which code.

The weights that an optimizer moves are always float32: an update is often a ten-thousandth of a weight, and
bfloat16 has only two or three digits. In half precision a pass works on a rounded copy of them, made anew
each time; gradients come back through the rounding as float32, so accumulation, clipping, optimizers and
checkpoints know nothing of it. All between the embedding and the loss is then half as many bytes to move,
also the residual stream, which `torch.autocast` would keep in float32. (What made it worth writing: GPT-2
small on an H200 trained at 509,000 tokens/s with autocast, and at 563,000 in a trial with everything in
bfloat16, optimizer included. This way itself has not been timed on a GPU yet.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from glassgpt.model import GPT2
from glassgpt.train.float8 import use_float8
from glassgpt.train.loss import Judge, head_and_loss, judge, judge_in_place
from glassgpt.train.settings import TrainSettings

ROUNDED_TO = {"auto": None, "float32": None, "float16": torch.float16}  # in all others: bfloat16
SHALLOW = 16  # blocks: up to here all are compiled together, beyond it one for all of them

RunBlock = Callable[..., Tensor]


class Hidden(nn.Module):
    """Ids to final vectors, as a module of its own: what `functional_call` can lend other weights."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, run_block: RunBlock) -> Tensor:
        return self.model.hidden(ids, run_block=run_block)


def hidden(model: GPT2, ids: Tensor, dtype: torch.dtype | None, run_block: RunBlock) -> Tensor:
    """The final vector of each token, (B, T) -> (B, T, C), computed with weights rounded to `dtype`."""
    if dtype is None or model.wte.weight.dtype == dtype:
        return model.hidden(ids, run_block=run_block)
    module = Hidden(model)
    rounded = {name: parameter.to(dtype) for name, parameter in module.named_parameters()}
    x: Tensor = functional_call(module, rounded, (ids, run_block))
    return x


class Called(nn.Module):
    """A block and how to call it, as a module of its own: for `functional_call`, as above."""

    def __init__(self, block: nn.Module, run_block: RunBlock) -> None:
        super().__init__()
        self.block, self.run_block = block, run_block

    def forward(self, *inputs: Any) -> Tensor:
        return self.run_block(self.block, *inputs)


def recomputed(run_block: RunBlock, block: nn.Module, *inputs: Any) -> Tensor:
    """Call a block and keep nothing of it but its input: the backward pass calls it again, with the same
    random numbers (activation checkpointing, Chen et al., 2016).

    If the block was lent rounded weights, it has its own back by then: they are rounded once more.
    """
    weight = next(block.parameters())
    lent, dtype = not isinstance(weight, nn.Parameter), weight.dtype

    def run(*inputs: Any) -> Tensor:
        if not lent:
            return run_block(block, *inputs)
        called = Called(block, run_block)
        rounded = {name: parameter.to(dtype) for name, parameter in called.named_parameters()}
        out: Tensor = functional_call(called, rounded, inputs)
        return out

    out: Tensor = checkpoint(run, *inputs, use_reentrant=False)
    return out


class Way(NamedTuple):
    dtype: torch.dtype | None = None  # that a pass rounds the weights to; None: as they are
    hidden: Callable[[GPT2, Tensor, torch.dtype | None, RunBlock], Tensor] = hidden
    run_block: RunBlock = nn.Module.__call__
    judge: Judge = judge_in_place

    @classmethod
    def of(cls, settings: TrainSettings, model: GPT2, alone: bool = True) -> Way:
        """As the settings say, for a model that trains alone in its process, or with others.

        With others it is compiled block by block, so that a block's gradients can be on their way while those
        of the block before are still computed.
        """
        if settings.precision == "float8":
            use_float8(model)
        way = cls(
            ROUNDED_TO.get(settings.precision, torch.bfloat16),
            judge=partial(
                judge if settings.compile else judge_in_place,
                z_loss=settings.z_loss,
                label_smoothing=settings.label_smoothing,
            ),
        )
        if settings.compile:
            way = way._replace(judge=torch.compile(way.judge))
            if alone and model.config.n_layer <= SHALLOW and not settings.recompute:
                return way._replace(hidden=torch.compile(hidden))
            way = way._replace(run_block=torch.compile(way.run_block))
        return way._replace(run_block=partial(recomputed, way.run_block)) if settings.recompute else way


PLAIN = Way()


def summed_loss(
    model: GPT2,
    ids: Tensor,
    targets: Tensor,
    way: Way = PLAIN,
    held: Callable[[Tensor], Tensor] = lambda weight: weight,
) -> Tensor:
    """The sum of -log p(target) over all tokens that count, in nats, (B, T) and (B, T) -> ().

    Its gradient is that of what `way` wants to be small. Without a gradient nothing is compiled for it.
    `held` turns the head's weight into what this process multiplies with, where many hold it together.
    """
    if not torch.is_grad_enabled():
        way = Way(way.dtype)
    x = way.hidden(model, ids, way.dtype, way.run_block)  # (B, T, C)
    weight = model.wte.weight if model.lm_head is None else model.lm_head.weight  # (V, C)
    return head_and_loss(x.flatten(0, 1), held(weight), targets.flatten(), way.judge)
