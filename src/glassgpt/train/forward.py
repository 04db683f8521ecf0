"""The forward pass of a training step: in which precision, compiled or not, with or without checkpointing.

The weights that an optimizer updates are always float32: an update is often a ten-thousandth of a weight, and
bfloat16 has only two or three digits. In half precision a pass works on a cast copy of them, made anew each
time; gradients come back through the cast as float32, so accumulation, clipping, optimizers and checkpoints
know nothing of it. Everything between the embedding and the loss is then half as many bytes to move,
including the residual stream, which `torch.autocast` would keep in float32. (GPT-2 small on an H200,
compiled: 509,000 tokens/s with autocast, 526,000 this way.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.model.variants.memory import Memory
from glassgpt.train.objective import Batch, Objective

RunBlock = Callable[..., Tensor]


def run_blocks(model: GPT2, ids: Tensor, run_block: RunBlock, memory: Memory | None = None) -> Tensor:
    """`model.hidden(ids, cache=memory)` with each block called by `run_block`."""
    x = model.embed(ids)  # (B, T, C)
    for i, block in enumerate(model.h):
        x = run_block(block, x, None, None, None if memory is None else memory.layer(i), None)
    out: Tensor = model.ln_f(x)
    return out


class HiddenStates(nn.Module):
    """`run_blocks` as a module, so that `functional_call` can swap the weights."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, run_block: RunBlock, memory: Memory | None) -> Tensor:
        return run_blocks(self.model, ids, run_block, memory)


def hidden_states(
    model: GPT2,
    ids: Tensor,
    weights: dict[str, Tensor] | None,
    run_block: RunBlock,
    memory: Memory | None = None,
) -> Tensor:
    """The final hidden states, (B, T) -> (B, T, C), computed with `weights` instead of the model's own."""
    if weights is None:
        return run_blocks(model, ids, run_block, memory)
    x: Tensor = functional_call(HiddenStates(model), weights, (ids, run_block, memory))
    return x


class _Cast(torch.autograd.Function):
    """Copies of all tensors in another dtype; their gradients come back in the tensors' own.

    Together: a model has hundreds of tensors, and launching one copy on a GPU takes as long as the copy.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(copies, tensors)
        trained = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(*(c for c, wanted in zip(copies, trained, strict=True) if not wanted))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        trained = ctx.needs_input_grad[1:]
        wide = [
            torch.empty_like(grad, dtype=dtype)
            for grad, dtype, wanted in zip(grads, ctx.dtypes, trained, strict=True)
            if wanted
        ]
        torch._foreach_copy_(wide, [grad for grad, wanted in zip(grads, trained, strict=True) if wanted])
        left = iter(wide)
        return None, *(next(left) if wanted else None for wanted in trained)


def cast_together(parameters: list[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    copies: tuple[Tensor, ...] = _Cast.apply(dtype, *parameters)  # type: ignore[no-untyped-call]
    return copies


def cast_one_by_one(parameters: list[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """So that the gradient of each can be reduced over processes as soon as it is computed."""
    return [parameter.to(dtype) for parameter in parameters]


class CalledBlock(nn.Module):
    """A block and how to call it as one module, for `functional_call`."""

    def __init__(self, block: nn.Module, run_block: RunBlock) -> None:
        super().__init__()
        self.block, self.run_block = block, run_block

    def forward(self, *inputs: Any) -> Tensor:
        return self.run_block(self.block, *inputs)


def checkpoint_block(run_block: RunBlock, block: nn.Module, *inputs: Any) -> Tensor:
    """Call a block and store only its input: the backward pass calls it again, with the same random numbers
    (activation checkpointing, Chen et al., 2016).

    If the block's weights were swapped for cast copies, its own are back by then: they are cast once more.
    """
    weight = next(block.parameters())
    swapped, dtype = not isinstance(weight, nn.Parameter), weight.dtype

    def run(*inputs: Any) -> Tensor:
        if not swapped:
            return run_block(block, *inputs)
        called = CalledBlock(block, run_block)
        copies = {name: parameter.to(dtype) for name, parameter in called.named_parameters()}
        out: Tensor = functional_call(called, copies, inputs)
        return out

    out: Tensor = checkpoint(run, *inputs, use_reentrant=False)
    return out


class StepConfig(NamedTuple):
    """How a pass is computed. `distributed.parallelize` makes one from a run's settings."""

    dtype: torch.dtype | None = None  # of the cast copies of the weights; None: the weights themselves
    cast: Callable[[list[Tensor], torch.dtype], Sequence[Tensor]] = cast_together
    hidden: Callable[..., Tensor] = hidden_states
    run_block: RunBlock = nn.Module.__call__


class Forward:
    """The model as an `Objective` sees it: `hidden` as the step computes it, all else as the model has it.

    Without gradients nothing is compiled or checkpointed. A `memory` is of what precedes the sequences.
    """

    def __init__(self, model: GPT2, config: StepConfig, memory: Memory | None = None) -> None:
        self._model, self._memory = model, memory
        self._config = config if torch.is_grad_enabled() else StepConfig(config.dtype, config.cast)

    def hidden(self, ids: Tensor) -> Tensor:
        config, weights = self._config, None
        if config.dtype is not None and self._model.wte.weight.dtype != config.dtype:
            names, parameters = zip(*HiddenStates(self._model).named_parameters(), strict=True)
            weights = dict(zip(names, config.cast(list(parameters), config.dtype), strict=True))
        return config.hidden(self._model, ids, weights, config.run_block, self._memory)

    @property
    def head_weight(self) -> Tensor:
        head = self._model.wte if self._model.lm_head is None else self._model.lm_head
        weight: Tensor = head.weight
        if isinstance(weight, DTensor):  # replicated: every process contributes a part of its gradient
            weight = weight.to_local(grad_placements=[Partial()])
        return weight

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class LossModule(nn.Module):
    """From a batch to its summed loss and count in one call: what DDP and FSDP wrap.

    The tied head reads `wte` outside of any module's forward; within this one, sharded weights are gathered.
    """

    def __init__(
        self,
        model: GPT2,
        objective: Objective,
        config: StepConfig = StepConfig(),  # noqa: B008 (immutable)
        tensor_mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.config = config
        self.tensor_mesh = tensor_mesh
        self.train(model.training)

    def forward(
        self, ids: Tensor, targets: Tensor, mask: Tensor, memory: Memory | None = None
    ) -> tuple[Tensor, Tensor]:
        if self.tensor_mesh is not None:
            # Hidden states are sharded by position (sequence parallelism). The head is replicated and each
            # process scores its own positions: the work is divided as if the vocabulary were.
            if targets.ndim < 2:
                raise SettingError(
                    "--parallel tp is for a target per token. Choose --parallel fsdp for this objective."
                )
            size, rank = self.tensor_mesh.size(), self.tensor_mesh.get_local_rank()
            targets, mask = (tensor.chunk(size, dim=1)[rank] for tensor in (targets, mask))
        batch = Batch(ids, targets, mask, memory)
        return self.objective(Forward(self.model, self.config, memory), batch)
