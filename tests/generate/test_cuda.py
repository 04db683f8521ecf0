"""The sampler and the pipelined engine on a real GPU: the same draws as numpy, and nothing waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.sampler import LogitEdits, draw_tokens, rank_tokens, stack_metadata

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SETTINGS = [
    SamplingParams(temperature=0, logprobs=3),
    SamplingParams(),
    SamplingParams(top_k=None, top_p=0.9),
    SamplingParams(top_k=None, temperature=1.3),
    SamplingParams(top_k=None, typical_p=0.7),
    SamplingParams(top_k=500, min_p=0.02, top_p=0.95),
    SamplingParams(top_k=1),
    SamplingParams(top_k=None, min_p=0.1, logprobs=None),
]


def to_cuda(values):
    return torch.from_numpy(np.ascontiguousarray(values)).cuda()


@pytest.mark.parametrize("ties", [False, True])
def test_the_same_tokens_as_on_the_host(ties):
    rng = np.random.default_rng(4)
    rows = len(SETTINGS) * 8
    logits = rng.normal(0, 3, (rows, 50_257)).astype(np.float32)
    if ties:
        logits = np.round(logits * 2) / 2  # as coarse as bfloat16 logits
    uniform = rng.random(rows)
    ids = rng.integers(0, 50_257, (rows, 1))
    edits = [ids, np.full((rows, 1), 1.2, np.float32), np.full((rows, 1), -np.inf, np.float32)]
    settings = SETTINGS * 8
    host = draw_tokens(logits, stack_metadata(settings, 50_257, lambda x: x), uniform, LogitEdits(*edits))
    device = draw_tokens(
        to_cuda(logits),
        stack_metadata(settings, 50_257, to_cuda),
        to_cuda(uniform),
        LogitEdits(*map(to_cuda, edits)),
    )
    np.testing.assert_array_equal(device.tokens.cpu().numpy(), host.tokens)
    # exp in float32 on either side, summed over 50,257 terms in float64
    np.testing.assert_allclose(device.report.cpu().numpy(), host.report, atol=1e-5)


@pytest.mark.parametrize("width", [1, 40, 1000, 50_257])
def test_ranking(width):
    scores = np.round(np.random.default_rng(1).normal(0, 4, (3, 50_257))).astype(np.float32)
    np.testing.assert_array_equal(
        rank_tokens(to_cuda(scores), width)[1].cpu().numpy(), rank_tokens(scores, width)[1]
    )


def test_drawing_never_waits_for_the_device():
    logits = torch.randn(4, 50_257, device="cuda")
    columns, uniform = stack_metadata(SETTINGS[:4], 50_257, to_cuda), to_cuda(np.full(4, 0.5))
    draw_tokens(logits, columns, uniform)
    torch.cuda.set_sync_debug_mode("error")
    try:
        draw_tokens(logits, columns, uniform)
    finally:
        torch.cuda.set_sync_debug_mode("default")
