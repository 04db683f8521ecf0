"""Many processes, one model: how it is divided among them. The model knows nothing of it.

The processes are torchrun's. Each of them, or under tp each group, trains on its own rows of every batch:

    ddp    each holds the whole model; gradients are summed when they are made (DistributedDataParallel)
    fsdp   each holds a share of every weight, gradient and optimizer memory; a block's weights are gathered
           when it is their turn and dropped again (FSDP2, `fully_shard`)
    tp     the processes of a group each hold some heads and some of the MLP's numbers of every block, and
           compute with them alone; what they find is summed (`parallelize_module`). Between blocks each has
           its stretch of every row. Several groups share what they hold as in fsdp.

Of a sum over tokens it does not matter which process had which. So the loss is the sum over all tokens of
an update divided by their number, in one process or in many.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
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

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.model.fast_path import has_standard_attention, is_unmodified
from glassgpt.model.gpt2 import MLP, Attention, Projection
from glassgpt.train.float8 import Float8Projection
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import PLAIN, Way, summed_loss

PLANS = ("ddp", "fsdp", "tp")


def check_plan(plan: str, settings: TrainSettings, tensor: int | None = None) -> None:
    if plan not in PLANS:
        raise SettingError(f"parallel {plan!r} is not one of {', '.join(PLANS)}.")
    if tensor is not None and plan != "tp":
        raise SettingError(f"tensor {tensor} is for groups that share a layer. Add --parallel tp.")
    if plan != "ddp" and settings.precision == "float16":
        raise SettingError(f"float16's scaling is not for shares of gradients. With {plan} choose bfloat16.")


def check_division(config: Config, context: int, processes: int) -> None:
    """Whether so many processes can share a layer."""
    most = math.gcd(config.n_head, config.d_mlp, context)
    instead = f"Choose --tensor {most} or a divisor of it" if most > 1 else "Choose --parallel fsdp"
    for name, value in (("n_head", config.n_head), ("the MLP's width", config.d_mlp), ("context", context)):
        if value % processes:
            raise SettingError(f"{name} {value} cannot be divided among {processes} processes. {instead}.")


class Surprise(nn.Module):
    """From ids to the summed loss in one call: what is wrapped, so that a wrapper sees the head used, too.

    The tied head reads `wte` outside of any module's forward; within this one, sharded weights are whole.
    """

    def __init__(self, model: GPT2, way: Way = PLAIN, group: DeviceMesh | None = None) -> None:
        super().__init__()
        self.model = model
        self.way = way
        self.group = group

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        if self.group is None:
            return summed_loss(self.model, ids, targets, self.way)
        # Of the group each has its stretch of every row. The head is whole in all of them and each judges
        # its own tokens with it: the work is divided as if the vocabulary were, and the loss stays as it is.
        stretch = targets.chunk(self.group.size(), dim=1)[self.group.get_local_rank()]
        return summed_loss(self.model, ids, stretch, self.way, learned_in_parts)


def learned_in_parts(weight: Tensor) -> Tensor:
    """A weight that all of a group hold, whose gradient is the sum of what each finds."""
    return weight.to_local(grad_placements=[Partial()]) if isinstance(weight, DTensor) else weight


def parallelize(model: GPT2, plan: str, mesh: DeviceMesh, way: Way = PLAIN) -> nn.Module:
    """The model's loss as a module that keeps the processes of the mesh together. The model's parameters are
    afterwards those an optimizer should move."""
    if plan == "ddp":
        return DistributedDataParallel(Surprise(model, way), process_group=mesh.get_group())
    surprise = Surprise(model, way, mesh["tensor"] if plan == "tp" else None)
    if plan == "tp":
        check_dividable(model)
        parallelize_module(model, mesh["tensor"], tensor_plan(), src_data_rank=None)
        for block in model.h:
            attention = cast(Attention, block.attn)
            attention.n_head //= mesh["tensor"].size()
    if mesh["data"].size() > 1 or plan == "fsdp":
        # Weights are gathered as the rounded copies that a pass works on; gradients are summed in float32.
        policy = MixedPrecisionPolicy(way.dtype, None if way.dtype is None else torch.float32)
        for block in model.h:
            fully_shard(block, mesh=mesh["data"], mp_policy=policy)
        # What is in no block: embeddings (so the head) and the last norm.
        fully_shard(surprise, mesh=mesh["data"], mp_policy=policy)
    return surprise


def check_dividable(model: GPT2) -> None:
    """`tensor_plan` knows what each part of a block computes, and which columns belong to which head."""
    ours = (Projection, Float8Projection)
    for block in model.h:
        parts = (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)  # type: ignore[union-attr]
        others = [part for part in parts if not any(is_unmodified(part, kind) for kind in ours)]
        if others or not (has_standard_attention(block) and is_unmodified(block.mlp, MLP)):
            named = type(others[0] if others else block.attn).__name__
            raise SettingError(
                f"--parallel tp divides GPT-2's own layers, and this model has others ({named}). "
                "Choose --parallel fsdp."
            )


def tensor_plan() -> dict[str, ParallelStyle]:
    """How a group shares the model. Between its parts a process has its stretch of each row, (B, T/N, C)."""
    # Every process has the whole of a table. Divided by words, wte (5 % of GPT-2 XL) would save little, and
    # the tied head would need a loss over a divided vocabulary.
    table = Divided(given=Replicate(), result=Shard(1), weight=Replicate())
    norm = SequenceParallel(use_local_output=True)
    columns: dict[str, Any] = {"given": Replicate(), "result": Shard(2), "weight": Shard(1), "bias": Shard(0)}
    rows = Divided(given=Shard(2), result=Shard(1), weight=Shard(0), bias=Replicate())
    return {
        "wte": table,
        "wpe": table,
        "h.*.ln_1": norm,
        "h.*.attn": gathered_first(more=4),  # (B, T, C)
        "h.*.attn.c_attn": Divided(**columns, parts=3),  # q, k and v of this process's heads, (B, T, 3 C/N)
        "h.*.attn.c_proj": rows,  # sums over all heads, (B, T/N, C)
        "h.*.ln_2": norm,
        "h.*.mlp": gathered_first(more=1),  # (B, T, C)
        "h.*.mlp.c_fc": Divided(**columns),  # (B, T, M/N)
        "h.*.mlp.c_proj": rows,  # (B, T/N, C)
        "ln_f": norm,
    }


def gathered_first(more: int) -> ParallelStyle:
    """The first argument comes in stretches and is put together; `more` others are left as they are."""
    rest = (None,) * more
    return PrepareModuleInput(input_layouts=(Shard(1), *rest), desired_input_layouts=(Replicate(), *rest))


class Divided(ParallelStyle):
    """A module of whose weight and bias each process holds a share, or all, and how what it is given and what
    it finds are divided. torch's own styles are for nn.Linear, with weights the other way round.

    `parts` lie side by side in the columns (q, k, v): each process has its share of each of them.
    """

    def __init__(
        self,
        *,
        given: Placement,
        result: Placement,
        weight: Placement,
        bias: Placement | None = None,
        parts: int = 1,
    ) -> None:
        self.given, self.result, self.weight, self.bias, self.parts = given, result, weight, bias, parts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            value = dealt(parameter.detach(), self.parts, device_mesh.size())
            # All have the same whole value, so nothing needs to be sent.
            held = distribute_tensor(value, device_mesh, [getattr(self, name)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(held, requires_grad=parameter.requires_grad))

        def before(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
            if isinstance(given[0], DTensor):
                return given
            return (DTensor.from_local(given[0], device_mesh, [self.given], run_check=False),)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(
            lambda _, given, found: found.redistribute(placements=[self.result]).to_local()
        )
        return module


def dealt(value: Tensor, parts: int, processes: int) -> Tensor:
    """The last dimension put in another order, so that cut into `processes` equal pieces each piece has its
    share of each of `parts`: q q' k k' v v' becomes q k v q' k' v'."""
    each = value.shape[-1] // (parts * processes)
    return value.view(*value.shape[:-1], parts, processes, each).transpose(-3, -2).flatten(-3)


def parts_of(name: str, value: Tensor) -> tuple[int, int]:
    """What lies side by side in a parameter's columns, and among how many processes it is dealt."""
    names = value.device_mesh.mesh_dim_names if isinstance(value, DTensor) else None
    if names is None or "tensor" not in names or ".c_attn." not in name:
        return 1, 1
    return 3, value.device_mesh["tensor"].size()  # type: ignore[attr-defined]


def whole(name: str, value: Tensor) -> Tensor:
    """All of a parameter (or an optimizer's memory of it) of which each process may hold a share, as one
    process would have it: to be asked for by all of them."""
    if not isinstance(value, DTensor):
        return value
    parts, processes = parts_of(name, value)
    return dealt(value.full_tensor(), processes, parts)


def share(name: str, value: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor, what this process holds of one that lies as `like` does. Others need not help."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.shape != like.shape:
        return value
    value = local = dealt(value.to(like.device), *parts_of(name, like))
    mesh, places = like.device_mesh, cast(Any, like.placements)
    for axis, place in reversed(list(zip(cast(Any, mesh.mesh_dim_names), places, strict=True))):
        if not place.is_replicate():  # a group first, then the groups: as `parallelize` divides
            pieces, rank = local.chunk(mesh[axis].size(), place.dim), mesh[axis].get_local_rank()
            local = pieces[rank] if rank < len(pieces) else local.narrow(place.dim, 0, 0)
    shape, stride = value.shape, value.stride()
    return DTensor.from_local(local.contiguous(), mesh, places, run_check=False, shape=shape, stride=stride)
