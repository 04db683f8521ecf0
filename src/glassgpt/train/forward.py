"""The forward pass of a training step: compiled or not, with or without checkpointing, in any precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from glassgpt.train.objectives.objective import Batch, Objective
from glassgpt.train.precision import cast_together

RunBlock = Callable[..., Tensor]


def hidden_states(
    model: GPT2,
    weights: dict[str, Tensor] | None,
    ids: Tensor,
    memory: Memory | None = None,
    run_block: RunBlock = nn.Module.__call__,
) -> Tensor:
    """`model.hidden(ids, cache=memory)`, (B, T) -> (B, T, C), with each block called by `run_block` and with
    `weights` in place of the model's own."""

    def run(model: GPT2, ids: Tensor) -> Tensor:
        x = model.embed(ids)  # (B, T, C)
        for i, block in enumerate(model.h):
            x = run_block(block, x, None, None, None if memory is None else memory.layer(i), None)
        out: Tensor = model.ln_f(x)
        return out

    return call_with(weights, run, model, ids)


class _Call(nn.Module):
    def __init__(self, function: Callable[..., Tensor], module: nn.Module) -> None:
        super().__init__()
        self.function, self.module = function, module

    def forward(self, *inputs: Any) -> Tensor:
        return self.function(self.module, *inputs)


def call_with(
    weights: dict[str, Tensor] | None, function: Callable[..., Tensor], module: Any, *inputs: Any
) -> Tensor:
    """`function(module, *inputs)` with `weights` in place of the module's own, unless they are None."""
    if weights is None:
        return function(module, *inputs)
    named = {f"module.{name}": weight for name, weight in weights.items()}
    out: Tensor = functional_call(_Call(function, module), named, inputs)
    return out


def checkpoint_block(run_block: RunBlock, block: nn.Module, *inputs: Any) -> Tensor:
    """Call a block and store only its input: the backward pass calls it again, with the same random numbers
    (activation checkpointing, Chen et al., 2016).

    If the block's weights were swapped for cast copies, the backward pass finds the originals again and
    casts them once more.
    """
    weight = next(block.parameters())
    swapped, dtype = not isinstance(weight, nn.Parameter), weight.dtype

    def run(*inputs: Any) -> Tensor:
        weights = {name: w.to(dtype) for name, w in block.named_parameters()} if swapped else None
        return call_with(weights, run_block, block, *inputs)

    out: Tensor = checkpoint(run, *inputs, use_reentrant=False)
    return out


class StepConfig(NamedTuple):
    """How a pass is computed. `distributed.parallelize` makes one from a run's settings."""

    dtype: torch.dtype | None = None  # of the cast copies of the weights; None: the weights themselves
    cast: Callable[[list[Tensor], torch.dtype], Sequence[Tensor]] = cast_together
    hidden: Callable[..., Tensor] = hidden_states
    run_block: RunBlock = nn.Module.__call__


class LossModule(nn.Module):
    """From a batch to its summed loss and number of targets in one call. DDP and FSDP wrap this module.

    The tied head reads `wte` outside its own forward; within this module's, sharded weights are gathered.
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
        batch = self.objective.prepare(Batch(ids, targets, mask, memory))
        if self.tensor_mesh is not None:
            # Hidden states are sharded by position (sequence parallelism). The head is replicated and each
            # process scores its own positions: the work is divided as if the vocabulary were.
            if targets.ndim < 2:
                raise SettingError(
                    "--parallel tp is for a target per token. Choose --parallel fsdp for this objective."
                )
            size, rank = self.tensor_mesh.size(), self.tensor_mesh.get_local_rank()
            targets, mask = (tensor.chunk(size, dim=1)[rank] for tensor in (batch.targets, batch.mask))
            batch = replace(batch, targets=targets, mask=mask)
        return self.objective(self.hidden(batch.ids, memory), self.head_weight, batch)

    def hidden(self, ids: Tensor, memory: Memory | None) -> Tensor:
        """The final hidden states, computed as configured; without gradients nothing is compiled or
        checkpointed."""
        config, model, weights = self.config, self.model, None
        if not torch.is_grad_enabled():
            config = StepConfig(config.dtype, config.cast)
        if config.dtype is not None and model.wte.weight.dtype != config.dtype:
            names, parameters = zip(*model.named_parameters(), strict=True)
            weights = dict(zip(names, config.cast(list(parameters), config.dtype), strict=True))
        return config.hidden(model, weights, ids, memory, config.run_block)

    @property
    def head_weight(self) -> Tensor:
        head = self.model.wte if self.model.lm_head is None else self.model.lm_head
        weight: Tensor = head.weight
        if isinstance(weight, DTensor):  # replicated: every process contributes a part of its gradient
            weight = weight.to_local(grad_placements=[Partial()])
        return weight
