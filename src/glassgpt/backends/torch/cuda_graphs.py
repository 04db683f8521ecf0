"""The forward pass as CUDA graphs, so that a GPU does not wait for Python.

GPT-2 small takes some hundred kernels a token, each a few microseconds: launching them one by one takes
longer than running them. So the forward pass is captured with fixed buffers for its inputs and outputs, once
for one new token in every row of the cache and once for a chunk of a prompt, and replayed.

Shapes never change between replays: a row is computed by the same kernels whether it is alone or not.
"""

from __future__ import annotations

import importlib.util
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.backends.torch.decode import (
    AttendOne,
    DecodeBlock,
    attend_with_mask,
    decode_block,
    decode_hidden,
)
from glassgpt.backends.torch.fast_path import can_use_triton_block
from glassgpt.model.attention import KERNEL_DTYPES
from glassgpt.model.cache import Cache
from glassgpt.model.gpt2 import GPT2

FEW_ROWS = 4  # up to here our own vector kernels beat matrix products and their launches
SHORT, LONG = (8, 64), (1, 512)  # (prompts read side by side, tokens in a chunk of each)
LONG_PROMPT = 128  # a prompt of more tokens than this is read by itself

# A capture takes some 20 ms and holds on to memory: it must be worth it, and there must be an end.
CALLS_BEFORE_CAPTURE = 4  # with the same signature
MAX_GRAPHS = 16

capture_lock = threading.Lock()  # torch captures on one stream, whichever thread asks


class GraphRunner:
    """Decoding for all rows of a cache, and reading prompts in staging caches from which rows are copied."""

    def __init__(self, model: GPT2, cache: Cache) -> None:
        self.model = model
        self.cache = cache
        rows, device = cache.kv.shape[2], cache.kv.device
        head = (model.wte.weight if model.lm_head is None else model.lm_head.weight).detach()  # (V, C)
        # Rows of logits that are not a whole number of 16 bytes make cuBLAS take a kernel six times slower.
        self.head = F.pad(head, (0, 0, 0, -len(head) % 64)).t()  # (C, V rounded up)
        self.expected = np.full(rows, -1, np.int64)  # what the device will have in self.positions
        self.ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.positions = torch.full((rows, 1), -1, dtype=torch.int64, device=device)
        self.decode_graph: CapturedGraph | None = None
        self.prefill_graphs: dict[tuple[int, int], CapturedGraph] = {}
        self.staging: dict[tuple[int, int], Cache] = {}

    def decode(self, ids: Tensor, positions: np.ndarray) -> Tensor:
        """Read one token per row; the logits (rows, V), which are the caller's to keep. -1: an idle row."""
        if self.decode_graph is None:
            self.decode_graph = self.capture_decode()
        self.ids.copy_(ids[:, None])
        if not np.array_equal(positions, self.expected):
            self.positions.copy_(on_device(positions[:, None], self.positions.device))
        self.expected = positions + (positions >= 0)
        return self.decode_graph.replay()[:, : self.model.config.vocab_size].clone()

    def extend(self, rows: Sequence[int], tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Read tokens into rows; the logits (len(rows), V) after the last of each.

        Short texts are read several side by side, a long one by itself in longer chunks. Which graph reads a
        text, and so its values, depends on its own length alone.
        """
        logits: dict[int, Tensor] = {}
        lengths = [start + len(ids) for start, ids in zip(starts, tokens, strict=True)]
        for shape in (SHORT, LONG):
            mine = [i for i, length in enumerate(lengths) if (length > LONG_PROMPT) == (shape is LONG)]
            for first in range(0, len(mine), shape[0]):
                some = mine[first : first + shape[0]]
                outputs = self._extend(
                    [rows[i] for i in some], [tokens[i] for i in some], [starts[i] for i in some], shape
                )
                logits.update(zip(some, outputs, strict=True))
        return torch.stack([logits[i] for i in range(len(rows))])

    def _extend(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        shape: tuple[int, int],
    ) -> list[Tensor]:
        """Chunk by chunk in the staging cache, whose rows then go where they belong."""
        if shape not in self.prefill_graphs:
            self.prefill_graphs[shape] = self.capture_prefill(shape)
        graph, staging, chunk = self.prefill_graphs[shape], self.staging[shape], shape[1]
        for place, (row, start) in enumerate(zip(rows, starts, strict=True)):
            if start:
                staging.kv[:, :, place, :, :start] = self.cache.kv[:, :, row, :, :start]
        logits: dict[int, Tensor] = {}
        for done in range(0, max(map(len, tokens)), chunk):
            inputs, positions = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
            last = np.zeros((shape[0], 1), np.int64)
            for place, (ids, start) in enumerate(zip(tokens, starts, strict=True)):
                part = ids[done : done + chunk]
                inputs[place, : len(part)] = part
                positions[place, : len(part)] = start + done + np.arange(len(part))
                last[place] = max(0, len(part) - 1)
            graph.inputs.copy_(on_device(np.hstack([inputs, positions, last]), self.head.device))
            out = graph.replay()[:, : self.model.config.vocab_size].clone()
            for place, ids in enumerate(tokens):
                if done < len(ids) <= done + chunk:
                    logits[place] = out[place]
        for place, (row, ids, start) in enumerate(zip(rows, tokens, starts, strict=True)):
            new = slice(start, start + len(ids))
            self.cache.kv[:, :, row, :, new] = staging.kv[:, :, place, :, new]
        return [logits[place] for place in range(len(rows))]

    def capture_decode(self) -> CapturedGraph:
        attend_one: AttendOne = attend_with_mask
        run_block: DecodeBlock = torch.compile(decode_block, fullgraph=True, dynamic=False)
        # Triton comes with torch for CUDA on Linux.
        if importlib.util.find_spec("triton") is not None and self.cache.kv.dtype in KERNEL_DTYPES:
            from glassgpt.backends.torch import triton_kernels as kernels

            attend_one = kernels.attend_one
            if len(self.positions) <= FEW_ROWS and all(map(can_use_triton_block, self.model.h)):
                run_block = kernels.decode_block
        self.positions.fill_(-1)  # the warm-up must not write to rows in use

        def forward() -> Tensor:
            x = decode_hidden(
                self.model, self.ids, self.positions, self.cache, attend_one, run_block
            )  # (rows, 1, C)
            logits = self.logits(x[:, 0])  # (rows, V)
            self.positions.add_((self.positions >= 0).long())  # ready for the next token
            return logits

        # One compiled block serves all layers; each shape of cache and model counts as a recompilation.
        with torch._dynamo.config.patch(recompile_limit=256):
            graph = CapturedGraph(self.positions, forward)
        self.expected = np.full(len(self.positions), -1, np.int64)
        return graph

    def capture_prefill(self, shape: tuple[int, int]) -> CapturedGraph:
        slots, chunk = shape
        inputs = torch.zeros(slots, 2 * chunk + 1, dtype=torch.int64, device=self.head.device)
        ids, positions, last = inputs[:, :chunk], inputs[:, chunk:-1], inputs[:, -1]
        place = torch.arange(slots, device=inputs.device)
        context = self.cache.context if shape == LONG else min(LONG_PROMPT, self.cache.context)
        staging = Cache.empty(self.model.config, slots, context, inputs.device, self.cache.kv.dtype)
        self.staging[shape] = staging

        def forward() -> Tensor:
            x = self.model.hidden(ids, positions, staging)  # (places, chunk, C)
            return self.logits(x[place, last])  # (places, V): only the last meets the head

        return CapturedGraph(inputs, forward)

    def logits(self, x: Tensor) -> Tensor:
        """(rows, C) -> (rows, V rounded up), summed and kept in float32."""
        if x.dtype in (torch.float32, torch.float64):
            return (x @ self.head).float()
        return torch.mm(x, self.head, out_dtype=torch.float32)


class CapturedGraph:
    """One forward pass, its input buffer and its output buffer."""

    def __init__(self, inputs: Tensor, forward: Callable[[], Tensor]) -> None:
        self.inputs = inputs
        self.forward = forward  # keeps every tensor that the graph reads alive
        with capture_lock, torch.cuda.device(inputs.device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # compiles, and lets cuBLAS allocate its workspace outside the graph
                    forward()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            # Thread-local: other threads may use the device meanwhile without breaking the capture.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.output = forward()

    def replay(self) -> Tensor:
        with torch.cuda.device(self.inputs.device):
            self.graph.replay()
        return self.output


def on_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Host values on the GPU, without waiting for them to arrive."""
    return torch.from_numpy(values).pin_memory().to(device, non_blocking=True)


class CapturedFunction:
    """A function of arrays with one row per sequence, captured once for each of a few batch sizes.

    `function(*arguments)` gets tensors, tuples of them, and other values that are the same at every call with
    the same signature; it returns a tuple of tensors. Rows must not depend on each other: a graph is for a
    power of two of them, and the unused ones hold what earlier calls left. A signature that comes only a
    few times is not captured, and of those that are, the least recently used are dropped.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self.function = function
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self.graphs: dict[
            tuple[Any, ...], tuple[list[Tensor], list[Tensor], CapturedGraph, list[Tensor]]
        ] = {}

    def __call__(self, *arguments: Any) -> list[Tensor]:
        leaves: list[Any] = []
        flatten(arguments, leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        rows = len(tensors[0])
        width = 1 << (rows - 1).bit_length()
        signature = (
            width,
            *((leaf.shape[1:], leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves),
        )
        if signature not in self.graphs:
            if len(self.calls) > 100 * MAX_GRAPHS:
                self.calls.clear()  # signatures that came once and never again
            self.calls[signature] += 1
            if self.calls[signature] < CALLS_BEFORE_CAPTURE:
                return list(self.function(*arguments))
            self.make_room(tensors[0].device)
            self.graphs[signature] = self.capture(arguments, tensors, width)
        # Taken out and put back: the last used is last.
        self.graphs[signature] = buffers, latest, graph, outputs = self.graphs.pop(signature)
        for i, tensor in enumerate(tensors):
            if latest[i] is not tensor:  # settings stay the same for many steps
                buffers[i][:rows].copy_(tensor)
                latest[i] = tensor
        graph.replay()
        return [output[:rows].clone() for output in outputs]

    def make_room(self, device: torch.device) -> None:
        self.calls.clear()
        if len(self.graphs) >= MAX_GRAPHS:
            if device.type == "cuda":
                with capture_lock:
                    torch.cuda.synchronize(device)  # it may still be running
            self.graphs.pop(next(iter(self.graphs)))

    def capture(
        self, arguments: Any, tensors: list[Tensor], width: int
    ) -> tuple[Any, Any, CapturedGraph, Any]:
        buffers = [tensor.new_zeros(width, *tensor.shape[1:]) for tensor in tensors]
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor[torch.arange(width, device=tensor.device) % len(tensor)])
        replaced = replace_tensors(arguments, iter(buffers))
        outputs: list[Tensor] = []

        def forward() -> Tensor:
            outputs[:] = self.function(*replaced)
            return outputs[0]

        graph = CapturedGraph(buffers[0], forward)
        return buffers, list(tensors), graph, list(outputs)


def flatten(value: Any, leaves: list[Any]) -> None:
    """The leaves of nested tuples, in order."""
    if isinstance(value, tuple):
        leaves.append(type(value))
        for part in value:
            flatten(part, leaves)
    else:
        leaves.append(value)


def replace_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nested tuples with other tensors in them."""
    if isinstance(value, tuple):
        parts = [replace_tensors(part, tensors) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return next(tensors) if isinstance(value, Tensor) else value
