"""The same on a CUDA device: numbers to rounding, and what must hold to the bit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend, arrange_for_gpu
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateHead, DirectLogitAttribution, Patch, SteerToken, TokenAttribution

from .conftest import some_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
A, B = some_ids(20, seed=1), some_ids(20, seed=2)


def moved(gpt: GPT, dtype: torch.dtype) -> GPT:
    return GPT(TorchBackend(arrange_for_gpu(copy.deepcopy(gpt.backend.model).to("cuda", dtype))))


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_traces(gpt: GPT, dtype: torch.dtype, allowed: float) -> None:
    here, there = gpt.trace(A), moved(gpt, dtype).trace(A)
    for name in ("h.0.attn.weights", "h.1.mlp.gelu", "h.2.resid_post", "ln_f", "logits"):
        size = max(1.0, float(np.abs(here[name]).max()))
        np.testing.assert_allclose(there[name], here[name], atol=allowed * size, rtol=0, err_msg=name)
    np.testing.assert_allclose(there.token_loss.p[1:], here.token_loss.p[1:], atol=allowed)
    np.testing.assert_allclose(there.lens(3).p, here.lens(3).p, atol=allowed)
    np.testing.assert_allclose(there.append(5).logits_at(), gpt.trace([*A, 5]).logits_at(), atol=20 * allowed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_interventions_and_attributions(gpt: GPT, dtype: torch.dtype) -> None:
    there = moved(gpt, dtype)
    assert there.intervene(A).kl == 0
    patched = there.intervene(A, Patch("h.1.resid_post", B)).after.logits
    np.testing.assert_array_equal(patched, there.trace(B).logits)
    assert there.intervene(A, [AblateHead(0, 1, "mean"), SteerToken(1, 4, 1.0)]).kl > 0
    direct = there.attribute(A, 7, "direct_logit_attribution")
    assert isinstance(direct, DirectLogitAttribution)
    assert abs(direct.total - direct.logit) < 1e-4
    found = there.attribute(A, 7)
    assert isinstance(found, TokenAttribution)
    assert found.convergence_delta is not None
    assert found.convergence_delta < 0.01
