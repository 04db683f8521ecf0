"""Memory: how much is free, how many rows fit at once, and what to do when there is too little.

An update's rows can be computed in pieces (micro-batches): the gradients add up to the same update, to
rounding, and only one piece's activations are held at a time.
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
    """Fewer rows at once may fit; the message says how many to try."""


def is_out_of_memory(error: BaseException) -> bool:
    """A GPU's, Python's own, or that of torch's allocator on a CPU, which is a plain RuntimeError."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def rows_at_once(settings: TrainSettings) -> int:
    return settings.rows if settings.micro_rows is None else settings.micro_rows


def with_fewer_rows(settings: TrainSettings) -> TrainSettings | None:
    """Half as many rows at once, or the next fewer that divide the update; None where it is one already."""
    rows = rows_at_once(settings)
    fewer = [n for n in divisors(settings.rows) if n <= rows // 2]
    return dataclasses.replace(settings, micro_rows=fewer[-1]) if fewer else None


class Pieces:
    """In how many pieces an update is computed. With `auto`, in more of them when memory runs out."""

    def __init__(self, settings: TrainSettings, processes: int = 1) -> None:
        if settings.auto and processes > 1:
            # One process that begins again would leave the others waiting for its gradients.
            raise SettingError("--auto is for one process. Of many, all need the same --micro-rows.")
        self.settings = settings

    def attempt(self, model: nn.Module, compute: Callable[[TrainSettings], Result]) -> Result:
        """What `compute` makes of the settings, which ask for as few rows at once as it takes."""
        device = next(model.parameters()).device
        while True:
            states = random_states(device) if self.settings.auto else None
            try:
                return compute(self.settings)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            # Not within the handler: the error would keep hold of all that the attempt had made.
            self.settings = self.after_failure()
            model.zero_grad(set_to_none=True)
            gc.collect()
            if states is not None:
                restore(states, device)
            if device.type == "cuda":
                torch.cuda.empty_cache()

    def after_failure(self) -> TrainSettings:
        fewer = with_fewer_rows(self.settings)
        if fewer is None:
            raise OutOfMemory(
                "out of memory with one row at once. Try --recompute, a shorter --context, or a smaller "
                "--shape."
            )
        if not self.settings.auto:
            raise too_many(self.settings, rows_at_once(fewer))
        return fewer


def too_many(settings: TrainSettings, rows: int) -> OutOfMemory:
    return OutOfMemory(
        f"out of memory with {rows_at_once(settings)} rows at once. Try --micro-rows {rows} (the same update "
        "in more pieces), or --auto to find what fits; if the run has a save, with --resume."
    )


def random_states(device: torch.device) -> list[torch.Tensor]:
    more = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *more]


def restore(states: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # only Linux says it so plainly
        return 4 << 30
    try:  # a container may have less than its machine
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text())
        free = min(free, int((group / "memory.max").read_text()) - used)
    except (OSError, ValueError):
        pass
    return max(0, free)


def total_memory() -> int:
    """Bytes this machine has, or this container may use."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        total = 1 << 40
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def activation_bytes(config: Config, settings: TrainSettings, rows: int, device: str = "cpu") -> int:
    """What is kept for the backward pass of so many windows at once: an estimate."""
    width = 4 if settings.precision in ("auto", "float32") else 2
    # Of a block, in units of n_embd: two norms' inputs and outputs, q k v, the mix, two projections, and
    # twice the wide layer of the MLP.
    kept = (config.n_embd * (4 + 3 + 1 + 2) + 2 * config.d_mlp) * width
    if config.attn_pdrop and device != "cuda":
        # On a CPU, attention with dropout is not fused: scores, softmax, what is left of it, and the mask.
        kept += config.n_head * settings.context * (3 * 4 + 1)
    # Recomputed, a block keeps its input, and one block at a time everything.
    blocks = config.n_layer * config.n_embd * 4 + kept if settings.recompute else config.n_layer * kept
    return rows * settings.context * (blocks + 2 * config.n_embd * 4)


def largest(rows: int, fits: Callable[[int], bool]) -> int:
    """The most rows at once that fit, of those that divide an update of `rows`; 0 if not even one does.

    It takes at most one try for each doubling of their number.
    """
    candidates = divisors(rows)
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
