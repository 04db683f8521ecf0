"""The same experiments by TransformerLens' bridge, on the same weights and 50 prompts: equal within 1e-4 of
the metric's range."""

from __future__ import annotations

import numpy as np
import pytest

from glassgpt.inspect import Head

pytest.importorskip("transformer_lens", reason="transformer_lens is in .venv-lab: make test-lab installs it")

import torch
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.tools.analysis import attribution_patch

SWEEPS = {
    "resid_pre": patching.get_act_patch_resid_pre,
    "resid_mid": patching.get_act_patch_resid_mid,
    "attn": patching.get_act_patch_attn_out,
    "mlp": patching.get_act_patch_mlp_out,
    "head": patching.get_act_patch_attn_head_out_all_pos,
    "q": patching.get_act_patch_attn_head_q_all_pos,
    "k": patching.get_act_patch_attn_head_k_all_pos,
    "v": patching.get_act_patch_attn_head_v_all_pos,
    "pattern": patching.get_act_patch_attn_head_pattern_all_pos,
}


@pytest.fixture(scope="module")
def bridge(folder):
    return TransformerBridge.boot_transformers(str(folder), device="cpu")


@pytest.fixture(scope="module")
def ids(texts) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(texts["clean"]), torch.tensor(texts["corrupted"])


@pytest.fixture(scope="module")
def caches(bridge, ids):
    with torch.no_grad():
        return tuple(bridge.run_with_cache(each)[1] for each in ids)


@pytest.fixture(scope="module")
def difference(texts):
    answers, others = torch.tensor(texts["answer"]), torch.tensor(texts["minus"])

    def metric(logits: torch.Tensor) -> torch.Tensor:
        last, rows = logits[:, -1], torch.arange(len(logits))
        return (last[rows, answers] - last[rows, others]).mean()

    return metric


@pytest.fixture(scope="module")
def metric_range(gpt, texts) -> float:
    """How far the metric lies apart over the prompts."""
    both = (
        gpt.traces(texts[name]).logit_diff(texts["answer"], texts["minus"]) for name in ("clean", "corrupted")
    )
    return float(np.ptp(np.concatenate([found.values for found in both])))


def assert_equal(ours: np.ndarray, theirs: np.ndarray, metric_range: float) -> None:
    assert np.abs(np.asarray(ours) - np.asarray(theirs)).max() < 1e-4 * metric_range


@pytest.mark.parametrize("patch", SWEEPS)
@torch.no_grad()
def test_sweeps(patch, gpt, bridge, ids, caches, difference, texts, metric_range) -> None:
    ours = gpt.sweep(**texts, patch=patch)
    theirs = SWEEPS[patch](bridge, ids[1], caches[0], difference)
    swept = ours.mean().values
    assert_equal(swept, theirs.numpy(), metric_range)
    np.testing.assert_allclose(ours.clean.mean(), float(difference(bridge(ids[0]))), atol=1e-4)


@pytest.mark.parametrize("component", ["q", "k", "v"])
@torch.no_grad()
def test_path_patching(component, gpt, bridge, ids, caches, difference, texts, metric_range) -> None:
    receivers = [Head(i, h, component) for i in (2, 3, 4) for h in range(gpt.config.n_head)]
    ours = gpt.path_patch(
        **texts, sender=Head(1, 2), receivers=receivers, separately=True, freeze_mlps=True, into="corrupted"
    )
    theirs = patching.get_act_patch_direct_path(
        bridge, ids[1], *caches, difference, 1, 2, component, verbose=False
    )
    swept = ours.mean().values[0]
    assert_equal(swept, theirs.numpy()[2:].ravel(), metric_range)


def test_attribution_patching(gpt, bridge, ids, texts, metric_range) -> None:
    pair = {name: values[:1] for name, values in texts.items()}
    answer, other = pair["answer"][0], pair["minus"][0]
    found = attribution_patch(
        bridge, ids[0][:1], ids[1][:1], lambda logits: logits[0, -1, answer] - logits[0, -1, other]
    )
    theirs = {"attn_head_out": np.zeros((5, 4, ids[0].shape[1])), "mlp_out": np.zeros((5, ids[0].shape[1]))}
    for node, score in found.node_scores.items():
        if node.kind == "attn_head_out":
            theirs[node.kind][node.layer, node.head, node.position] = score
        elif node.kind == "mlp_out":
            theirs[node.kind][node.layer, node.position] = score
    heads = gpt.attribution_patch(**pair, patch="head", positions="each").effect().values[0]
    assert_equal(heads, theirs["attn_head_out"], metric_range)
    mlps = gpt.attribution_patch(**pair, patch="mlp").effect().values[0]
    assert_equal(mlps, theirs["mlp_out"], metric_range)


@torch.no_grad()
def test_decomposition_and_logit_attribution(gpt, bridge, ids, caches, texts, metric_range) -> None:
    traces = gpt.traces(texts["clean"])
    ours = traces.decompose()
    heads, labels = caches[0].stack_head_results(layer=-1, pos_slice=-1, return_labels=True)
    names = [f"head {label[1:].replace('H', '.')}" for label in labels if label.startswith("L")]
    columns = [ours.labels["component"].index(name) for name in names]
    stream = ours.total
    for column, theirs in zip(columns, heads[: len(names)].numpy(), strict=True):
        assert_equal(ours[:, column], theirs, np.ptp(stream))
    parts, labels = caches[0].decompose_resid(layer=-1, pos_slice=-1, return_labels=True)
    for layer in range(gpt.config.n_layer):
        theirs = parts[labels.index(f"{layer}_mlp_out")].numpy()
        assert_equal(ours.at(component=f"mlp {layer}").values, theirs, np.ptp(stream))

    scaled = caches[0].apply_ln_to_stack(heads[: len(names)], layer=-1, pos_slice=-1)
    rows = gpt.weights.W_U.T[texts["answer"]] - gpt.weights.W_U.T[texts["minus"]]
    gain = gpt.torch_model.ln_f.weight.numpy()  # apply_ln_to_stack centers and scales
    theirs = np.einsum("hpc,pc->ph", scaled.numpy(), gain * rows)
    found = traces.attribute_logits(texts["answer"], minus=texts["minus"])
    assert_equal(found.values[:, columns], theirs, metric_range)
