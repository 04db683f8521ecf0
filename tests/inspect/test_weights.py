"""`gpt.weights` against the activations of a trace, by TransformerLens' formulas."""

from __future__ import annotations

import numpy as np
import pytest

import glassgpt
from glassgpt.errors import StepIndexError
from tests.conftest import SHIPPED

TEXT = "The old house stood at the"


@pytest.fixture(scope="module", params=["native", "numpy", "torch"])
def gpt(request: pytest.FixtureRequest) -> glassgpt.GPT:
    return glassgpt.load(SHIPPED, backend=request.param, device="cpu")


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Up to float32's rounding of sums of some hundred products."""
    return bool(np.abs(found - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max()))


def test_every_step_follows_from_the_weights(gpt: glassgpt.GPT) -> None:
    trace, w = gpt.trace(TEXT), gpt.weights
    assert close(w.W_E[trace.tokens] + w.W_pos[: len(trace)], trace["embedding"])
    assert close(trace["ln_f"] @ w.W_U, trace.logits)
    for layer in (0, gpt.config.n_layer - 1):
        for name, weight, bias in (("q", w.W_Q, w.b_Q), ("k", w.W_K, w.b_K), ("v", w.W_V, w.b_V)):
            found = trace.ln_1[layer] @ weight[layer] + bias[layer][:, None]  # (H, T, D)
            assert close(found, getattr(trace.attn, name)[layer])
        written = (trace.attn.z[layer] @ w.W_O[layer]).sum(axis=0) + w.b_O[layer]
        assert close(written, trace.attn.proj[layer])
        assert close(trace.ln_2[layer] @ w.W_in[layer] + w.b_in[layer], trace.mlp.fc[layer])
        assert close(trace.mlp.gelu[layer] @ w.W_out[layer] + w.b_out[layer], trace.mlp.proj[layer])


def test_shapes_are_named_and_layers_are_read_one_at_a_time(gpt: glassgpt.GPT) -> None:
    w, config = gpt.weights, gpt.config
    assert repr(w.W_Q) == f"<W_Q {w.W_Q.shape}: L, H, C, D>"
    assert w.W_Q.shape == (config.n_layer, config.n_head, config.n_embd, config.d_head)
    for weight in (w.W_Q, w.W_O, w.W_in, w.W_out, w.b_Q, w.b_O, w.b_in, w.b_out):
        assert weight[:].shape == np.asarray(weight).shape == weight.shape
        assert weight[-1].dtype == np.float32
        assert len(list(weight)) == len(weight) == config.n_layer
        np.testing.assert_array_equal(weight[:, 0], weight[:][:, 0])
    np.testing.assert_array_equal(w.W_V[1, 2], w.W_V[1][2])
    with pytest.raises(StepIndexError, match="layer 99 is out of range"):
        w.W_Q[99]
    with pytest.raises(StepIndexError, match=r"W_Q is .*out of bounds"):
        w.W_Q[0, 99]
