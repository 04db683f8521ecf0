"""Memory: how much is free, which micro-batch fits, and what to do when it runs out.

A batch can be computed in micro-batches: the gradients add up to the same update, to rounding, and only one
micro-batch's activations are in memory at a time.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.train.settings import TrainSettings, divisors

Result = TypeVar("Result")


class OutOfMemory(UserError):
    """A smaller micro-batch may fit; the message says which to try."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it is a GPU's error, a MemoryError, or the plain RuntimeError of torch's CPU allocator."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def micro_batch_size(settings: TrainSettings) -> int:
    return settings.batch_size if settings.micro_batch_size is None else settings.micro_batch_size


def halve_micro_batch(settings: TrainSettings) -> TrainSettings | None:
    """The settings with half the micro-batch size, or the next smaller divisor of the batch size; None if it
    is already 1."""
    size = micro_batch_size(settings)
    smaller = [n for n in divisors(settings.batch_size) if n <= size // 2]
    return dataclasses.replace(settings, micro_batch_size=smaller[-1]) if smaller else None


class AutoMicroBatch:
    """Run passes with the micro-batch size of the settings; with `auto_micro_batch`, retry with half of it
    when memory runs out."""

    def __init__(self, settings: TrainSettings, world_size: int = 1) -> None:
        if settings.auto_micro_batch and world_size > 1:
            # One process that retries would leave the others waiting for its gradients.
            raise SettingError(
                "--auto-micro-batch is for one process. With several, give all the same --micro-batch-size."
            )
        self.settings = settings  # with the micro-batch size that fits

    def run(self, model: nn.Module, compute: Callable[[int], Result]) -> Result:
        """`compute(micro_batch_size)`, whose only side effects are on gradients and random states."""
        device = next(model.parameters()).device
        while True:
            states = get_rng_states(device) if self.settings.auto_micro_batch else None
            try:
                return compute(micro_batch_size(self.settings))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the handler: the error references everything that the attempt allocated.
            self.settings = self._after_failure()
            model.zero_grad(set_to_none=True)
            gc.collect()
            if states is not None:
                set_rng_states(states, device)
            if device.type == "cuda":
                torch.cuda.empty_cache()

    def _after_failure(self) -> TrainSettings:
        smaller = halve_micro_batch(self.settings)
        if smaller is None:
            raise OutOfMemory(
                "out of memory with a micro-batch size of 1. Try --activation-checkpointing, a shorter "
                "--context, or a smaller --shape."
            )
        if not self.settings.auto_micro_batch:
            raise out_of_memory(self.settings, micro_batch_size(smaller))
        return smaller


def out_of_memory(settings: TrainSettings, size: int) -> OutOfMemory:
    return OutOfMemory(
        f"out of memory with a micro-batch size of {micro_batch_size(settings)}. "
        f"Try --micro-batch-size {size} (the same update with gradient accumulation), or --auto-micro-batch "
        "to find one that fits; if the run has a checkpoint, with --resume."
    )


def get_rng_states(device: torch.device) -> list[torch.Tensor]:
    cuda_states = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *cuda_states]


def set_rng_states(states: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # only Linux has it
        return 4 << 30
    try:  # a container may have less than its machine
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text())
        free = min(free, int((group / "memory.max").read_text()) - used)
    except (OSError, ValueError):
        pass
    return max(0, free)


def total_memory() -> int:
    """Bytes of memory of this machine, or of this container."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        total = 1 << 40
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def activation_bytes(config: Config, settings: TrainSettings, batch_size: int, device: str = "cpu") -> int:
    """Estimated bytes stored for the backward pass of `batch_size` sequences."""
    width = 4 if settings.precision in ("auto", "float32") else 2
    # Per block, in units of n_embd: two norms' inputs and outputs, q k v, attention's output, two
    # projections, and twice the wide layer of the MLP.
    stored = (config.n_embd * (4 + 3 + 1 + 2) + 2 * config.d_mlp) * width
    if config.kind.has_bias or (config.attn_pdrop and device != "cuda"):
        # On a CPU, attention with dropout is not fused: scores, softmax, dropped-out softmax and mask.
        stored += config.n_head * (settings.context + config.kind.n_past(config)) * (3 * 4 + 1)
    # With checkpointing every block stores its input, and only one block at a time stores everything.
    blocks = (
        config.n_layer * config.n_embd * 4 + stored
        if settings.activation_checkpointing
        else config.n_layer * stored
    )
    return batch_size * settings.context * (blocks + 2 * config.n_embd * 4)


def largest_fitting(batch_size: int, fits: Callable[[int], bool]) -> int:
    """The largest divisor of the batch size that fits as a micro-batch, by binary search; 0 if 1 does not."""
    candidates = divisors(batch_size)
    below, above = -1, len(candidates)  # fits, does not fit
    if fits(candidates[-1]):
        return candidates[-1]
    above -= 1
    while above - below > 1:
        middle = (below + above) // 2
        if fits(candidates[middle]):
            below = middle
        else:
            above = middle
    return candidates[below] if below >= 0 else 0
