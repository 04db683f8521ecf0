"""Attribution: sums that must come out, and each method against a slow way to compute the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.errors import SettingError, StepIndexError
from glassgpt.gpt import GPT
from glassgpt.inspect import DirectLogitAttribution, TokenAttribution
from glassgpt.inspect.attribution import gradients

from .conftest import SMALL, random_model, some_ids, weights_of
from .plain import forward

IDS = some_ids(12, seed=4)
MODELS: dict[int, GPT] = {}


def logit_of(gpt: GPT, ids: list[int], rows: np.ndarray, target: int) -> float:
    """The last logit of the target with these token embeddings, in plain numpy."""
    weights = dict(weights_of(gpt))
    head = weights["wte.weight"].astype(np.float64)
    # The text becomes the first tokens of a vocabulary of its own; the head stays what it was.
    weights["wte.weight"], weights["lm_head.weight"] = rows, head
    return float(forward(weights, SMALL, range(len(ids)))["logits"][-1, target])


def test_gradient_times_input_is_the_slope(gpt: GPT) -> None:
    rows = weights_of(gpt)["wte.weight"][IDS].astype(np.float64)
    found = gpt.attribute(IDS, 33, "input_x_gradient")
    assert isinstance(found, TokenAttribution)
    for t in (0, 5, 11):
        up, down = rows.copy(), rows.copy()
        up[t] *= 1 + 1e-5
        down[t] *= 1 - 1e-5
        slope = (logit_of(gpt, IDS, up, 33) - logit_of(gpt, IDS, down, 33)) / 2e-5
        assert found.scores[t] == pytest.approx(slope, abs=1e-4)
    assert found.logit == pytest.approx(gpt.trace(IDS).logits[-1, 33], abs=1e-5)


def test_integrated_gradients_are_the_integral(gpt: GPT) -> None:
    found = gpt.attribute(IDS, 33)
    assert isinstance(found, TokenAttribution)
    assert found.method == "integrated_gradients"
    rows = weights_of(gpt)["wte.weight"][IDS].astype(np.float64)
    assert found.baseline == pytest.approx(logit_of(gpt, IDS, 0 * rows, 33), abs=1e-4)
    model = copy.deepcopy(gpt.backend.model).double()
    steps = 150
    total = np.zeros(12)
    x = model.wte.weight[IDS].detach()
    for alpha in (np.arange(steps) + 0.5) / steps:
        points = (alpha * x).requires_grad_()
        out = model(
            torch.tensor([IDS]), tap=lambda name, y, points=points: points[None] if name == "wte" else y
        )
        (slope,) = torch.autograd.grad(out[0, -1, 33], points)
        total += (slope * x).sum(-1).numpy() / steps
    np.testing.assert_allclose(found.scores, total, atol=0.01 * np.abs(total).max())


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 3), size=st.integers(1, 24), target=st.integers(0, 100), loud=st.sampled_from([1, 4])
)
def test_the_convergence_delta_is_below_one_percent(seed: int, size: int, target: int, loud: int) -> None:
    gpt = MODELS.setdefault(seed + 10 * loud, random_model(seed=seed, noise=0.1 * loud))
    found = gpt.attribute(some_ids(size, seed), target)
    assert isinstance(found, TokenAttribution)
    assert found.baseline is not None
    assert found.convergence_delta is not None
    difference = found.logit - found.baseline
    assert abs(found.scores.sum(dtype=np.float64) - difference) == pytest.approx(
        found.convergence_delta * abs(difference), rel=1e-6
    )
    if abs(difference) > 1e-3:  # below, the scores' own float32 is coarser than a percent of it
        assert found.convergence_delta < 0.01


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 3), size=st.integers(1, 24), target=st.integers(0, 100), loud=st.sampled_from([1, 4])
)
def test_direct_attribution_sums_to_the_logit(seed: int, size: int, target: int, loud: int) -> None:
    gpt = MODELS.setdefault(seed + 10 * loud, random_model(seed=seed, noise=0.1 * loud))
    ids = some_ids(size, seed)
    found = gpt.attribute(ids, target, "direct_logit_attribution")
    assert isinstance(found, DirectLogitAttribution)
    logit = gpt.trace(ids).logits[-1, target]
    assert abs(found.total - logit) < 1e-4
    assert found.logit == logit


def test_direct_attribution_part_by_part(gpt: GPT) -> None:
    w = {name: values.astype(np.float64) for name, values in weights_of(gpt).items()}
    position = 7
    found = gpt.attribute(IDS, 50, "direct_logit_attribution", position=position)
    assert isinstance(found, DirectLogitAttribution)
    seen = forward(w, SMALL, IDS)
    x = seen["h.2.resid_post"][position]
    scale = 1 / np.sqrt(x.var() + 1e-5)

    def contribution(part: np.ndarray) -> float:
        return float(((part - part.mean()) * scale * w["ln_f.weight"]) @ w["wte.weight"][50])

    for layer in range(3):
        out = w[f"h.{layer}.attn.c_proj.weight"].reshape(4, 8, 32)
        for head in range(4):
            part = seen[f"h.{layer}.attn.z"][head, position] @ out[head]
            assert found.heads[layer, head] == pytest.approx(contribution(part), abs=1e-5)
        assert found.mlps[layer] == pytest.approx(
            contribution(seen[f"h.{layer}.mlp.proj"][position]), abs=1e-5
        )
        assert found.attn_bias[layer] == pytest.approx(
            contribution(w[f"h.{layer}.attn.c_proj.bias"]), abs=1e-5
        )
    assert found.wte == pytest.approx(contribution(w["wte.weight"][IDS[position]]), abs=1e-5)
    assert found.wpe == pytest.approx(contribution(w["wpe.weight"][position]), abs=1e-5)
    assert found.ln_f_bias == pytest.approx(w["ln_f.bias"] @ w["wte.weight"][50], abs=1e-5)
    assert found.total == pytest.approx(seen["logits"][position, 50], abs=1e-5)


def test_a_stream_as_loud_as_the_published_ones() -> None:
    """In GPT-2 small a few numbers of the stream are in the thousands, and logits lie near -100."""
    gpt = random_model(noise=0.05)
    with torch.no_grad():
        model = gpt.backend.model
        model.h[1].mlp.c_proj.bias[[7, 20]] += 3000
        model.ln_f.bias += 6
        model.wte.weight -= 0.5
    trace = gpt.trace(IDS)
    assert trace.norms[-1].min() > 4000
    assert trace.logits.max() < -80
    for target in (3, 50, 99):
        direct = gpt.attribute(trace, target, "direct_logit_attribution")
        assert isinstance(direct, DirectLogitAttribution)
        assert abs(direct.total - trace.logits[-1, target]) < 1e-4
        found = gpt.attribute(trace, target)
        assert isinstance(found, TokenAttribution)
        assert found.convergence_delta is not None
        assert found.convergence_delta < 0.01


def test_rollout(gpt: GPT) -> None:
    found = gpt.attribute(IDS, 3, "attention_rollout", position=8)
    assert isinstance(found, TokenAttribution)
    seen = forward(weights_of(gpt), SMALL, IDS)
    product = np.eye(12)
    for layer in range(3):
        product = (0.5 * seen[f"h.{layer}.attn.weights"].mean(0) + 0.5 * np.eye(12)) @ product
    np.testing.assert_allclose(found.scores, product[8], atol=1e-6)
    assert found.scores.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "attention_rollout"])
def test_what_comes_later_does_not_count(gpt: GPT, method: str) -> None:
    found = gpt.attribute(IDS, 3, method, position=4)
    assert isinstance(found, TokenAttribution)
    assert found.scores.shape == (12,)
    assert not found.scores[5:].any()
    short = gpt.attribute(IDS[:5], 3, method)
    assert isinstance(short, TokenAttribution)
    np.testing.assert_allclose(found.scores[:5], short.scores, atol=1e-5)


def test_half_precision_is_computed_in_float32(gpt: GPT) -> None:
    half = GPT(TorchBackend(copy.deepcopy(gpt.backend.model).bfloat16()))
    direct = half.attribute(IDS, 9, "direct_logit_attribution")
    assert isinstance(direct, DirectLogitAttribution)
    assert abs(direct.total - direct.logit) < 1e-4
    found = half.attribute(IDS, 9)
    assert isinstance(found, TokenAttribution)
    assert found.convergence_delta is not None
    assert found.convergence_delta < 0.01


def test_targets(shipped: GPT) -> None:
    text = "The old house stood at the"
    likeliest = shipped.attribute(text, method="attention_rollout")
    best = likeliest.trace.vocabulary.text(likeliest.target)
    assert best == shipped.next(text, 1)[0][0]
    assert shipped.attribute(text, best, "attention_rollout").target == likeliest.target
    beyond = shipped.config.vocab_size
    named: list[tuple[Any, str]] = [
        ("a door, that is", "tokens. Pass one token"), ("", "0 tokens"), (-1, "-1 is not a token id"),
        (True, "True is not a token id"), (beyond, f"0 to {beyond - 1}"), (1.5, "1.5 is not"),
    ]  # fmt: skip
    for target, says in named:
        with pytest.raises(SettingError, match=says):
            shipped.attribute(text, target)
    with pytest.raises(
        SettingError, match="method 'lime' is not one of input_x_gradient, integrated_gradients, "
    ):
        shipped.attribute(text, 5, "lime")
    with pytest.raises(StepIndexError, match="position 6"):
        shipped.attribute(text, 5, position=6)


def test_the_shipped_and_the_golden_model(shipped: GPT, shared: Path) -> None:
    from .test_trace import golden

    nano, expected = golden(shared / "golden" / "llm_viz_gpt_nano")
    for gpt, text in (
        (shipped, "It was a dark and stormy night; the"),
        (nano, expected["idx"][0].int().tolist()),
    ):
        for target in (0, 1, 2):
            direct = gpt.attribute(text, target, "direct_logit_attribution")
            assert isinstance(direct, DirectLogitAttribution)
            assert abs(direct.total - gpt.trace(text).logits[-1, target]) < 1e-4
            integrated = gpt.attribute(text, target)
            assert isinstance(integrated, TokenAttribution)
            assert integrated.convergence_delta is not None
            assert integrated.convergence_delta < 0.01


def test_another_target_reuses_the_forward_pass(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    forward = gradients.TargetLogit.final_vector
    monkeypatch.setattr(
        gradients.TargetLogit, "final_vector", lambda self, x: passes.append(1) or forward(self, x)
    )
    kept, plain = gpt.trace(some_ids(9)).keep_steps(10**6), gpt.trace(some_ids(9))
    for target, position in ((3, 8), (5, 8), (5, 4), (3, 4)):
        found, fresh = (gpt.attribute(t, target, "input_x_gradient", position) for t in (kept, plain))
        np.testing.assert_array_equal(found.scores, fresh.scores)
        assert found.logit == fresh.logit == pytest.approx(plain.logits_at(position)[target], abs=1e-5)
    assert len(passes) == 2 + 4
    kept.clear_cache()
    assert kept.gradient_pass is None


def test_two_targets_are_the_difference_of_their_logits(gpt: GPT) -> None:
    trace = gpt.trace(IDS)
    logits = trace.logits_at(-1)
    for method in ("input_x_gradient", "integrated_gradients", "direct_logit_attribution"):
        one, other, both = (gpt.attribute(trace, target, method) for target in (33, 50, (33, 50)))
        assert (both.target, both.foil) == (33, 50)
        # two float32 logits of some units
        assert both.logit == pytest.approx(logits[33] - logits[50], abs=1e-4)
        if isinstance(both, DirectLogitAttribution):
            assert isinstance(one, DirectLogitAttribution)
            assert isinstance(other, DirectLogitAttribution)
            assert both.total == pytest.approx(both.logit, abs=2e-4)
            np.testing.assert_array_equal(both.heads, one.heads - other.heads)
        elif method == "integrated_gradients":
            assert both.baseline is not None
            assert both.scores.sum() == pytest.approx(both.logit - both.baseline, rel=0.01, abs=1e-2)
            assert both.convergence_delta is not None
    assert "33" in repr(both)
    for target, method in (((33, 50), "attention_rollout"), ((33,), "input_x_gradient")):
        with pytest.raises(SettingError, match="a difference is of two tokens"):
            gpt.attribute(trace, target, method)  # type: ignore[arg-type]
