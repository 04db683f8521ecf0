"""The forward pass recorded as CUDA graphs, so that a GPU is not kept waiting for Python.

GPT-2 small takes some hundred kernels a token, each a few microseconds: launching them one by one takes
longer than running them. So the ordinary forward pass is recorded with fixed buffers for its inputs and
outputs, once for one new token in every row of the cache and once for a stretch of a prompt, and replayed.

Shapes never change between replays: a row is computed by the same kernels whether it is alone or not.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.model.cache import Cache
from glassgpt.model.gpt2 import ACTIVATION, GPT2, gelu_tanh

FEW_ROWS = 4  # up to here our own vector kernels beat matrix products and their launches
STRETCHES = (64, 512)  # tokens of a prompt read at once


class Recordings:
    """Decoding for all rows of a cache, and prefilling on a desk of its own from which rows are copied."""

    def __init__(self, model: GPT2, cache: Cache) -> None:
        self.model = model
        self.cache = cache
        rows, device = cache.kv.shape[2], cache.kv.device
        head = model.wte.weight if model.lm_head is None else model.lm_head.weight  # (V, C)
        # Rows of logits that are not a whole number of 16 bytes make cuBLAS take a kernel six times slower.
        self.head = F.pad(head, (0, 0, 0, -len(head) % 64)).t()  # (C, V or a few more)
        self.expected = np.full(rows, -1, np.int64)  # what the device will have in self.positions
        self.ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.positions = torch.full((rows, 1), -1, dtype=torch.int64, device=device)
        self.decoding: Recording | None = None
        self.prefilling: dict[int, Recording] = {}
        self.desk: Cache | None = None

    def decode(self, ids: Tensor, positions: np.ndarray) -> Tensor:
        """Read one token per row; the logits (rows, V), which are the caller's to keep. -1: an idle row."""
        if self.decoding is None:
            self.decoding = self.record_decoding()
        self.ids.copy_(ids[:, None])
        if not np.array_equal(positions, self.expected):
            self.positions.copy_(on_device(positions[:, None], self.positions.device))
        self.expected = positions + (positions >= 0)
        return self.decoding.replay()[:, : self.model.config.vocab_size].clone()

    def prefill(self, row: int, ids: Sequence[int]) -> Tensor:
        """Read a prompt into a row; the logits (V,) after its last token."""
        desk = self.desk
        if desk is None:
            config, kv = self.model.config, self.cache.kv
            desk = self.desk = Cache.empty(config, 1, self.cache.context, kv.device, kv.dtype)
        logits = None
        for start, stretch in stretches(len(ids)):
            recording = self.prefilling.get(stretch)
            if recording is None:
                recording = self.prefilling[stretch] = self.record_prefilling(desk, stretch)
            part = np.asarray(ids[start : start + stretch])
            filled = np.full((3, stretch), -1, np.int64)
            filled[0] = 0
            filled[0, : len(part)] = part
            filled[1, : len(part)] = start + np.arange(len(part))
            filled[2] = len(part) - 1
            recording.inputs.copy_(on_device(filled, self.positions.device))
            logits = recording.replay()
        assert logits is not None
        self.cache.kv[:, :, row, :, : len(ids)] = desk.kv[:, :, 0, :, : len(ids)]
        return logits[0, : self.model.config.vocab_size].clone()

    def record_decoding(self) -> Recording:
        view, run_block = self.cache, torch.compile(nn.Module.__call__, fullgraph=True, dynamic=False)
        if importlib.util.find_spec("triton") is not None:  # it comes with torch for CUDA on Linux
            from glassgpt.model import kernels

            view = dataclasses.replace(self.cache, attend_one=kernels.attend_one)
            if (
                len(self.positions) <= FEW_ROWS
                and ACTIVATION[self.model.config.activation_function] is gelu_tanh
            ):
                run_block = kernels.run_block
        self.positions.fill_(-1)  # trying it out must not write into rows that are in use

        def forward() -> Tensor:
            x = self.model.hidden(self.ids, self.positions, view, run_block=run_block)  # (rows, 1, C)
            logits = self.logits(x[:, 0])  # (rows, V)
            self.positions.add_((self.positions >= 0).long())  # ready for the next token
            return logits

        # One compiled block serves all layers, but each shape of cache and model counts as a recompilation.
        with torch._dynamo.config.patch(recompile_limit=256):
            recording = Recording(self.positions, forward)
        self.expected = np.full(len(self.positions), -1, np.int64)
        return recording

    def record_prefilling(self, desk: Cache, stretch: int) -> Recording:
        inputs = torch.full((3, stretch), -1, dtype=torch.int64, device=desk.kv.device)
        inputs[0] = 0
        inputs[2] = 0

        def forward() -> Tensor:
            x = self.model.hidden(inputs[0:1], inputs[1:2], desk)  # (1, stretch, C)
            return self.logits(x[0].index_select(0, inputs[2, :1]))  # (1, V): only the last meets the head

        return Recording(inputs, forward)

    def logits(self, x: Tensor) -> Tensor:
        """(rows, C) -> (rows, V or a few more), summed and kept in float32."""
        if x.dtype in (torch.float32, torch.float64):
            return (x @ self.head).float()
        return torch.mm(x, self.head, out_dtype=torch.float32)


class Recording:
    """One forward pass, its input buffer and its output buffer."""

    def __init__(self, inputs: Tensor, forward: Callable[[], Tensor]) -> None:
        self.inputs = inputs
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and lets cuBLAS take its workspace outside the recording
                forward()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = forward()

    def replay(self) -> Tensor:
        self.graph.replay()
        return self.output


def stretches(length: int) -> list[tuple[int, int]]:
    """Where each stretch of a prompt starts and how long its recording is."""
    short, long = STRETCHES
    parts = [(start, long) for start in range(0, length // long * long, long)]
    rest = length - len(parts) * long
    if rest > long // 2:  # one long pass is quicker than several short ones
        return [*parts, (length - rest, long)]
    return parts + [(start, short) for start in range(length - rest, length, short)]


def on_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Host values on the GPU, without waiting for them to arrive."""
    return torch.from_numpy(values).pin_memory().to(device, non_blocking=True)
