"""The way a training step is computed: in which numbers, and by which code.

The weights that an optimizer moves are always float32: an update is often a ten-thousandth of a weight, and
bfloat16 has only two or three digits. In half precision a pass works on a rounded copy of them, made anew
each time; gradients come back through the rounding as float32, so accumulation, clipping, optimizers and
checkpoints know nothing of it. All between the embedding and the loss is then half as many bytes to move,
also the residual stream, which `torch.autocast` would keep in float32. (GPT-2 small on an H200,
compiled: 509,000 tokens/s with autocast, 526,000 so.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from glassgpt.model import GPT2
from glassgpt.train.float8 import use_float8
from glassgpt.train.loss import Judge, head_and_loss, judge
from glassgpt.train.settings import TrainSettings

ROUNDED_TO = {"auto": None, "float32": None, "float16": torch.float16}  # in all others: bfloat16
SHALLOW = 16  # blocks: up to here all are compiled together, beyond it one for all of them

RunBlock = Callable[..., Tensor]


def run_blocks(model: GPT2, ids: Tensor, run_block: RunBlock) -> Tensor:
    """`model.hidden(ids)` with each block called by `run_block`."""
    x = model.embed(ids)
    for block in model.h:
        x = run_block(block, x, None, None, None, None)
    out: Tensor = model.ln_f(x)
    return out


class Hidden(nn.Module):
    """Ids to final vectors, as a module of its own: what `functional_call` can lend other weights."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, run_block: RunBlock) -> Tensor:
        return run_blocks(self.model, ids, run_block)


def hidden(model: GPT2, ids: Tensor, weights: dict[str, Tensor] | None, run_block: RunBlock) -> Tensor:
    """The final vector of each token, (B, T) -> (B, T, C), with these weights in place of the model's own."""
    if weights is None:
        return run_blocks(model, ids, run_block)
    x: Tensor = functional_call(Hidden(model), weights, (ids, run_block))
    return x


class _Rounded(torch.autograd.Function):
    """Copies of all tensors in another precision; back come their gradients, in their own.

    All in one go: a model has hundreds of tensors, and to tell a GPU of one copy takes as long as to make it.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(copies, tensors)
        learning = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(*(c for c, wanted in zip(copies, learning, strict=True) if not wanted))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        learning = ctx.needs_input_grad[1:]
        wide = [
            torch.empty_like(grad, dtype=dtype)
            for grad, dtype, w in zip(grads, ctx.dtypes, learning, strict=True)
            if w
        ]
        torch._foreach_copy_(wide, [grad for grad, w in zip(grads, learning, strict=True) if w])
        left = iter(wide)
        return None, *(next(left) if wanted else None for wanted in learning)


def together(parameters: list[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    copies: tuple[Tensor, ...] = _Rounded.apply(dtype, *parameters)  # type: ignore[no-untyped-call]
    return copies


def one_by_one(parameters: list[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """So that the gradient of each can be sent to other processes as soon as it is there."""
    return [parameter.to(dtype) for parameter in parameters]


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
    rounded: Callable[[list[Tensor], torch.dtype], Sequence[Tensor]] = together
    hidden: Callable[[GPT2, Tensor, dict[str, Tensor] | None, RunBlock], Tensor] = hidden
    run_block: RunBlock = nn.Module.__call__
    judge: Judge = judge
    float8_head: bool = False

    @classmethod
    def of(cls, settings: TrainSettings, model: GPT2, alone: bool = True) -> Way:
        """As the settings say, for a model that trains alone in its process, or with others.

        With others it is compiled block by block, so that a block's gradients can be on their way while those
        of the block before are still computed.
        """
        weight = model.wte.weight
        if settings.precision == "float8":
            use_float8(model)
        kernel = weight.is_cuda and weight.dtype != torch.float64 and find_spec("triton") is not None
        way = cls(
            ROUNDED_TO.get(settings.precision, torch.bfloat16),
            together if alone else one_by_one,
            judge=partial(
                import_module("glassgpt.train.loss_kernel").judge if kernel else judge,
                z_loss=settings.z_loss,
                label_smoothing=settings.label_smoothing,
            ),
            float8_head=settings.precision == "float8" and kernel and weight.shape[1] % 16 == 0,
        )
        if settings.compile:
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
        way = Way(way.dtype, way.rounded, judge=way.judge)
    weights = None
    if way.dtype is not None and model.wte.weight.dtype != way.dtype:
        names, parameters = zip(*Hidden(model).named_parameters(), strict=True)
        weights = dict(zip(names, way.rounded(list(parameters), way.dtype), strict=True))
    x = way.hidden(model, ids, weights, way.run_block)  # (B, T, C)
    weight = model.wte.weight if model.lm_head is None else model.lm_head.weight  # (V, C)
    return head_and_loss(x.flatten(0, 1), held(weight), targets.flatten(), way.judge, way.float8_head)
