"""One decode step recorded as a CUDA graph, so that a GPU is not kept waiting for Python.

GPT-2 small takes some hundred kernels a token, each a few microseconds: launching them one by one takes
longer than running them. The step is the ordinary forward pass, its block compiled once and used for every
layer, recorded with fixed buffers for its inputs and outputs, and replayed for each token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glassgpt.model.cache import Cache
from glassgpt.model.gpt2 import GPT2

SPANS = (128, 256, 512, 768)  # a step looks back over the shortest of these (or the context) that suffices


class DecodeGraphs:
    """A recording for each span that was needed so far."""

    def __init__(self, model: GPT2, cache: Cache, compile: bool = True) -> None:
        self.model = model
        self.cache = cache
        rows, device = cache.kv.shape[2], cache.kv.device
        self.ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self.recorded: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        if compile:
            for block in model.h:
                block.compile(fullgraph=True, dynamic=False)

    def step(self, ids: Tensor, positions: Tensor, span: int) -> Tensor:
        """Read one token per row; the logits (rows, V), which are the caller's to keep."""
        span = next((s for s in SPANS if span <= s < self.cache.context), self.cache.context)
        if span not in self.recorded:
            self.recorded[span] = self.record(span)
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        graph, logits = self.recorded[span]
        graph.replay()
        return logits.clone()

    def record(self, span: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        self.positions.fill_(-1)  # warming up must not write into rows that are in use
        view = self.cache.view(slice(None), span)

        def forward() -> Tensor:
            logits: Tensor = self.model(self.ids[:, None], self.positions[:, None], view)  # (rows, 1, V)
            return logits[:, 0]

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and lets cuBLAS take its workspace outside the recording
                forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = forward()
        return graph, logits
