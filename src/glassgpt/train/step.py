"""One optimizer step: forward, loss, backward, all-reduce, clip, step."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.micro_batch import AutoMicroBatch
from glassgpt.train.objectives.objective import Batch


class StepResult(NamedTuple):
    loss: float  # the mean over the targets of the batch
    grad_norm: float  # before clipping
    updated: bool  # False if either is not finite: then the weights are left as they were


def train_step(
    batch: Batch,
    loss_module: nn.Module,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler,
    micro_batch: AutoMicroBatch,
    group: ProcessGroup,
) -> StepResult:
    """Update the weights with one batch. All processes get the same result, so all make the same decision."""
    settings = micro_batch.settings
    with deterministic_algorithms(settings.deterministic):
        loss_sum, count = micro_batch.run(
            loss_module, lambda size: backward_micro_batches(batch, size, loss_module, scaler, group)
        )
        loss_sum = group.all_reduce(loss_sum)
        count = group.all_reduce(count).clamp(min=1)  # a batch may have no targets: then its loss is 0
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        grad_norm = average_and_clip_grads(loss_module, count, settings.grad_clip)
        stats = torch.stack([loss_sum / count, grad_norm])
        step_first = stats.is_cuda and group.mesh is None and not scaler.is_enabled()
        if step_first and all(map(can_skip, optimizers)):
            # A GPU would idle while the CPU waits for these values. So the optimizers are launched first, and
            # they leave the weights as they are if one of the values is not finite.
            pending = AsyncRead(stats)
            for optimizer in optimizers:
                optimizer.found_inf = 1 - stats.isfinite().all().float()  # type: ignore[attr-defined]
                optimizer.step()
            loss, norm = pending.wait()
            updated = math.isfinite(loss) and math.isfinite(norm)
        else:
            loss, norm = stats.tolist()
            updated = math.isfinite(loss) and math.isfinite(norm)
            for optimizer in optimizers if updated else ():
                scaler.step(optimizer)
        scaler.update()
        loss_module.zero_grad(set_to_none=True)  # evaluation, samples and saves need the memory
    return StepResult(loss, norm, updated)


def backward_micro_batches(
    batch: Batch,
    micro_batch_size: int,
    loss_module: nn.Module,
    scaler: torch.amp.GradScaler,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """Compute the gradient of the summed loss; return the sum and the number of targets.

    The sum is divided once, after all micro-batches are added: an update is the mean over its targets however
    the batch is split, and a target's gradient is as large in any batch, which low precision needs.
    """
    loss_module.zero_grad(set_to_none=True)
    loss_sum = torch.zeros((), device=batch.ids.device)
    count = torch.zeros((), device=batch.ids.device, dtype=torch.int64)
    micro_batches = batch.split(micro_batch_size)
    for i, micro in enumerate(micro_batches, start=1):
        with gradient_sync(loss_module, enabled=i == len(micro_batches)):
            loss, targets = loss_module(*micro.inputs)
            # DDP and FSDP average gradients over the data-parallel processes; the sum is wanted.
            scaler.scale(loss * group.data_parallel_size).backward()
        loss_sum = loss_sum + loss.detach()
        count = count + targets
    return loss_sum, count


@contextmanager
def gradient_sync(loss_module: nn.Module, enabled: bool) -> Iterator[None]:
    """Skip DDP's gradient exchange before the last micro-batch.

    FSDP always exchanges them: accumulating unsharded gradients would cost the memory that sharding saves.
    """
    skip = not enabled and isinstance(loss_module, DistributedDataParallel)
    with loss_module.no_sync() if skip else nullcontext():  # type: ignore[operator]
        yield


def average_and_clip_grads(loss_module: nn.Module, count: Tensor, max_norm: float) -> Tensor:
    """Divide the summed gradient by the number of targets and clip it; return its norm before clipping."""
    for parameter in loss_module.parameters():
        grad = parameter.grad
        # Partial sums of replicated parameters (tensor parallelism) are reduced here, once per step.
        if isinstance(grad, DTensor) and grad.placements != parameter.placements:  # type: ignore[attr-defined]
            parameter.grad = grad.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
    grads = [parameter.grad for parameter in loss_module.parameters() if parameter.grad is not None]
    norm = get_total_norm(grads)
    norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm) / count
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0) / count
    torch._foreach_mul_(grads, factor.to(grads[0].dtype))
    return norm


def can_skip(optimizer: Optimizer) -> bool:
    """Whether an optimizer respects `found_inf`, a tensor on the GPU: torch's fused ones do, to support
    float16."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


class AsyncRead:
    """Copy values from a GPU in the background. `wait` waits for the copy, not for later kernels."""

    def __init__(self, values: Tensor) -> None:
        self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self.values.copy_(values, non_blocking=True)
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.copied.record()

    def wait(self) -> list[float]:
        self.copied.synchronize()
        values: list[float] = self.values.tolist()
        return values


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Ask torch for a fixed order of sums, which is slower: otherwise a GPU may sum in any order."""
    if not enabled:
        yield
        return
    was_enabled = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch requires it
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_enabled)
