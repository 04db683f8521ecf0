"""The memory that a training run carries from step to step (model/variants/memory.py) and saves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from glassgpt.model import GPT2
from glassgpt.model.variants.memory import Memory
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.objectives.objective import Batch

KV, FILLED = "memory.kv", "memory.filled"


class StreamMemory:
    """The memory of this process's rows of the batch. `restarts(step)` says when these begin anew."""

    def __init__(
        self,
        model: GPT2,
        batch_size: int,
        dtype: torch.dtype,
        restarts: Callable[[int], bool],
        group: ProcessGroup,
    ) -> None:
        self.batch_size, self.restarts, self.group = batch_size, restarts, group
        device, rows = model.wte.weight.device, group.local_batch_size(batch_size)
        self.memory = Memory.empty(model.config, rows, device, dtype)

    def attach(self, batch: Batch, step: int) -> Batch:
        """The batch of a step with the memory of the tokens before it."""
        if self.restarts(step):
            self.memory = self.memory.cleared()
        return dataclasses.replace(batch, memory=self.memory)

    def advance(self, batch: Batch) -> None:
        self.memory = self.memory.advance(batch.ids.shape[1])

    def empty(self, batch_size: int) -> Memory:
        """An empty memory like this one, for an evaluation with its own batch size."""
        kv = self.memory.kv[:, :, :1].expand(-1, -1, self.group.local_batch_size(batch_size), -1, -1, -1)
        return Memory(torch.zeros_like(kv), torch.zeros_like(kv), torch.zeros_like(self.memory.filled))

    def state(self) -> dict[str, Tensor]:
        """The memory of the whole batch, for a checkpoint. A collective."""
        parts = []
        for rank, kv in enumerate(self.group.all_gather(self.memory.kv)):
            rows = self.rows_of(rank)
            parts.append(kv[:, :, : rows.stop - rows.start])  # without padding
        return {KV: torch.cat(parts, dim=2), FILLED: self.memory.filled}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a checkpoint's memory, however many processes saved it."""
        own = state[KV][:, :, self.rows_of(self.group.data_parallel_rank)]
        self.memory.kv[:, :, : own.shape[2]] = own.to(self.memory.kv)
        self.memory.filled.copy_(state[FILLED])

    def rows_of(self, rank: int) -> slice:
        size = self.group.data_parallel_size
        return slice(self.batch_size * rank // size, self.batch_size * (rank + 1) // size)
