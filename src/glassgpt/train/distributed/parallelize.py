"""Prepare a model for training: divided among processes, compiled, cast, sharded. The model itself knows
nothing about it.

The processes are torchrun's. Each of them, or under tp each group, trains on its own sequences of every
batch:

    ddp    each holds the whole model; gradients are summed as they are computed (DistributedDataParallel)
    fsdp   each holds a shard of every weight, gradient and optimizer state; a block's weights are gathered
           when they are needed and freed again (FSDP2, `fully_shard`)
    tp     the processes of a group each hold some heads and part of the MLP of every block, and compute with
           them alone; the results are summed (`parallelize_module`). Between blocks each has a chunk of every
           sequence. Several groups shard what they hold as in fsdp.

The loss is the sum over all targets of a batch divided by their number, so it does not matter which process
has which of them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ParallelStyle,
    PrepareModuleInput,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from glassgpt.backends.torch.fast_path import has_standard_attention, is_unmodified
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.model.gpt2 import MLP, Attention, Projection
from glassgpt.train.forward import LossModule, StepConfig, checkpoint_block, hidden_states
from glassgpt.train.layers.float8 import Float8Projection, apply_float8
from glassgpt.train.objectives.objective import Objective, default_objective
from glassgpt.train.precision import cast_dtype, cast_one_by_one, cast_together
from glassgpt.train.settings import TrainSettings

MODES = ("ddp", "fsdp", "tp")
COMPILE_WHOLE = 16  # blocks: up to here the whole model is compiled at once, deeper ones block by block


def parallelize(
    model: GPT2,
    settings: TrainSettings,
    mesh: DeviceMesh | None = None,
    mode: str = "ddp",
    objective: Objective | None = None,
) -> nn.Module:
    """The model's loss as a module (see `LossModule`), ready to train in one process or in those of the mesh.

    The order matters: layers are divided first (tensor parallelism), then compiled; checkpointing wraps the
    compiled block, so that the recomputation is also compiled; precision decides what a pass multiplies;
    sharding or DDP comes last and wraps everything. The model's parameters are afterwards those to optimize.
    """
    if objective is None:
        objective = default_objective(settings, model)
    tensor_mesh = mesh["tensor"] if mesh is not None and mode == "tp" else None

    # Tensor parallelism
    if tensor_mesh is not None:
        apply_tensor_parallel(model, tensor_mesh)

    # torch.compile: block by block where gradients are exchanged, so that a block's gradients are sent
    # while those of the block before it are still computed
    config = StepConfig()
    if settings.compile:
        shallow = model.config.n_layer <= COMPILE_WHOLE
        if mesh is None and shallow and not settings.activation_checkpointing:
            config = config._replace(hidden=torch.compile(hidden_states))
        else:
            config = config._replace(run_block=torch.compile(config.run_block))

    # Activation checkpointing
    if settings.activation_checkpointing:
        config = config._replace(run_block=partial(checkpoint_block, config.run_block))

    # Precision
    if settings.precision == "float8":
        apply_float8(model)
    config = config._replace(
        dtype=cast_dtype(settings),
        cast=cast_together if mesh is None else cast_one_by_one,
    )

    # Data parallelism
    loss_module = LossModule(model, objective, config, tensor_mesh)
    if mesh is None:
        return loss_module
    if mode == "ddp":
        return DistributedDataParallel(loss_module, process_group=mesh.get_group())
    if mesh["data"].size() > 1 or mode == "fsdp":
        apply_fsdp(loss_module, mesh["data"], config.dtype)
    return loss_module


def apply_tensor_parallel(model: GPT2, mesh: DeviceMesh) -> None:
    check_tensor_parallel(model)
    parallelize_module(model, mesh, tensor_parallel_plan(), src_data_rank=None)
    for block in model.h:
        attention = cast(Attention, block.attn)
        attention.n_head //= mesh.size()


def apply_fsdp(loss_module: LossModule, mesh: DeviceMesh, dtype: torch.dtype | None) -> None:
    # Weights are gathered as the cast copies that a pass works on; gradients are reduced in float32.
    policy = MixedPrecisionPolicy(dtype, None if dtype is None else torch.float32)
    for block in loss_module.model.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    # Outside the blocks: embeddings (and so the head) and the final norm.
    fully_shard(loss_module, mesh=mesh, mp_policy=policy)


def check_mode(mode: str, settings: TrainSettings, tensor_parallel_size: int | None = None) -> None:
    if mode not in MODES:
        raise SettingError(f"parallel {mode!r} is not one of {', '.join(MODES)}.")
    if tensor_parallel_size is not None and mode != "tp":
        raise SettingError(
            f"tensor_parallel_size {tensor_parallel_size} is for tensor parallelism. Add --parallel tp."
        )
    if mode != "ddp" and settings.precision == "float16":
        raise SettingError(
            "float16 needs a loss scale, which sharded gradients do not support. "
            f"With {mode} choose bfloat16."
        )


def check_divisible(config: Config, context: int, size: int) -> None:
    """Refuse a number of processes that cannot divide a layer."""
    largest = math.gcd(config.n_head, config.d_mlp, context)
    instead = (
        f"Choose --tensor-parallel-size {largest} or a divisor of it"
        if largest > 1
        else "Choose --parallel fsdp"
    )
    for name, value in (("n_head", config.n_head), ("the MLP's width", config.d_mlp), ("context", context)):
        if value % size:
            raise SettingError(f"{name} {value} cannot be divided among {size} processes. {instead}.")


def check_tensor_parallel(model: GPT2) -> None:
    """Refuse other layers than GPT-2's: `tensor_parallel_plan` assumes what each part of a block computes
    and which columns belong to which head."""
    supported = (Projection, Float8Projection)
    for block in model.h:
        parts = (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)  # type: ignore[union-attr]
        others = [part for part in parts if not any(is_unmodified(part, kind) for kind in supported)]
        if others or not (has_standard_attention(block) and is_unmodified(block.mlp, MLP)):
            name = type(others[0] if others else block.attn).__name__
            raise SettingError(
                f"--parallel tp divides GPT-2's own layers, and this model has others ({name}). "
                "Choose --parallel fsdp."
            )


def tensor_parallel_plan() -> dict[str, ParallelStyle]:
    """How N processes divide the model. Between its parts each has a chunk of every sequence, (B, T/N, C)."""
    # Embeddings are replicated. Sharding wte by vocabulary (5 % of GPT-2 XL) would save little, and the tied
    # head would need a loss over a sharded vocabulary.
    embedding = ShardedModule(input=Replicate(), output=Shard(1), weight=Replicate())
    norm = SequenceParallel(use_local_output=True)
    column: dict[str, Any] = {"input": Replicate(), "output": Shard(2), "weight": Shard(1), "bias": Shard(0)}
    row = ShardedModule(input=Shard(2), output=Shard(1), weight=Shard(0), bias=Replicate())
    return {
        "wte": embedding,
        "wpe": embedding,
        "h.*.ln_1": norm,
        "h.*.attn": gather_sequence(others=1),  # (B, T, C)
        "h.*.attn.c_attn": ShardedModule(
            **column, parts=3
        ),  # q, k and v of this process's heads, (B, T, 3 C/N)
        "h.*.attn.c_proj": row,  # sums over all heads, (B, T/N, C)
        "h.*.ln_2": norm,
        "h.*.mlp": gather_sequence(others=1),  # (B, T, C)
        "h.*.mlp.c_fc": ShardedModule(**column),  # (B, T, M/N)
        "h.*.mlp.c_proj": row,  # (B, T/N, C)
        "ln_f": norm,
    }


def gather_sequence(others: int) -> ParallelStyle:
    """All-gather the first argument along the sequence; `others` are passed on as they are."""
    rest = (None,) * others
    return PrepareModuleInput(input_layouts=(Shard(1), *rest), desired_input_layouts=(Replicate(), *rest))


class ShardedModule(ParallelStyle):
    """The placements of a module's weight, bias, input and output. torch's own styles are for nn.Linear,
    whose weight is transposed.

    `parts` are concatenated in the columns (q, k, v): each process holds a shard of each of them.
    """

    def __init__(
        self,
        *,
        input: Placement,
        output: Placement,
        weight: Placement,
        bias: Placement | None = None,
        parts: int = 1,
    ) -> None:
        self.input, self.output, self.weight, self.bias, self.parts = input, output, weight, bias, parts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            value = interleave(parameter.detach(), self.parts, device_mesh.size())
            # All processes have the same value, so nothing needs to be sent.
            sharded = distribute_tensor(value, device_mesh, [getattr(self, name)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(sharded, requires_grad=parameter.requires_grad))

        def to_dtensor(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            if isinstance(inputs[0], DTensor):
                return inputs
            return (DTensor.from_local(inputs[0], device_mesh, [self.input], run_check=False),)

        module.register_forward_pre_hook(to_dtensor)
        module.register_forward_hook(
            lambda _, inputs, output: output.redistribute(placements=[self.output]).to_local()
        )
        return module


def interleave(value: Tensor, parts: int, shards: int) -> Tensor:
    """Reorder the last dimension so that, split into `shards` equal chunks, each chunk has its shard of each
    of `parts`: q q' k k' v v' becomes q k v q' k' v'. `interleave(..., shards, parts)` undoes it."""
    each = value.shape[-1] // (parts * shards)
    return value.view(*value.shape[:-1], parts, shards, each).transpose(-3, -2).flatten(-3)


def interleaving(name: str, value: Tensor) -> tuple[int, int]:
    """How many parts are concatenated in a parameter's columns, and over how many shards they are
    interleaved."""
    names = value.device_mesh.mesh_dim_names if isinstance(value, DTensor) else None
    if names is None or "tensor" not in names or ".c_attn." not in name:
        return 1, 1
    return 3, value.device_mesh["tensor"].size()  # type: ignore[attr-defined]


def unshard(name: str, value: Tensor) -> Tensor:
    """A parameter (or its optimizer state) as one process would have it, gathered from the shards. A
    collective: all processes call it."""
    if not isinstance(value, DTensor):
        return value
    parts, shards = interleaving(name, value)
    return interleave(value.full_tensor(), shards, parts)


def shard(name: str, value: Tensor, like: Tensor) -> Tensor:
    """This process's shard of a full tensor, placed like `like`. Not a collective."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.shape != like.shape:
        return value
    value = local = interleave(value.to(like.device), *interleaving(name, like))
    mesh, placements = like.device_mesh, cast(Any, like.placements)
    for axis, placement in reversed(list(zip(cast(Any, mesh.mesh_dim_names), placements, strict=True))):
        if not placement.is_replicate():  # tensor before data: as `parallelize` divides
            chunks, rank = local.chunk(mesh[axis].size(), placement.dim), mesh[axis].get_local_rank()
            local = chunks[rank] if rank < len(chunks) else local.narrow(placement.dim, 0, 0)
    shape, stride = value.shape, value.stride()
    return DTensor.from_local(
        local.contiguous(), mesh, placements, run_check=False, shape=shape, stride=stride
    )
