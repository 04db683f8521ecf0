"""A complete tiny GPT that others trained and traced, step by step (llm-viz: gpt-nano-sort).

The file stays in ../shared; this runs wherever that folder is next to the checkout.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from glassgpt.config import Config
from glassgpt.model import GPT2

# Our tap and llm-viz's name for the same step. Its traced batch holds float32 numbers.
STEPS = {
    "wte": "tok_emb",
    "wpe": "pos_emb",
    "embedding": "x",
    "h.0.ln_1": "ln1",
    "h.0.attn.q": "q",
    "h.0.attn.k": "k",
    "h.0.attn.v": "v",
    "h.0.attn.weights": "attSm",
    "h.0.attn.merged": "y",
    "h.0.attn.proj": "yProj",
    "h.0.resid_mid": "attnResid",
    "h.0.ln_2": "ln2",
    "h.0.mlp.fc": "fc",
    "h.0.mlp.gelu": "gelu",
    "h.0.mlp.proj": "mlp",
    "h.0.resid_post": "block0",
    "h.1.resid_post": "block1",
    "h.2.resid_post": "block2",
    "ln_f": "ln_f",
    "logits": "lm_head",
}


def tensors(file: Path) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(
            np.frombuffer(base64.b64decode(entry["data"]), "<f4").reshape(entry["shape"]).copy()
        )
        for name, entry in json.loads(file.read_text()).items()
        if "data" in entry
    }


def nano(weights: dict[str, torch.Tensor], activation: str) -> GPT2:
    model = GPT2(
        Config(
            vocab_size=3, n_positions=11, n_embd=48, n_layer=3, n_head=3,
            tie_word_embeddings=False, activation_function=activation,
        )
    )  # fmt: skip
    state = {}
    for name, value in weights.items():
        if not name.endswith(".attn.bias"):  # the causal mask, kept as a buffer there
            linear = ".attn.c_" in name or ".mlp.c_" in name
            state[name.removeprefix("transformer.")] = value.T if linear and value.ndim == 2 else value
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def test_every_step_of_the_traced_model(shared: Path) -> None:
    folder = shared / "golden" / "llm_viz_gpt_nano"
    model = nano(tensors(folder / "gpt-nano-sort-model.json"), "gelu_new")
    expected = tensors(folder / "gpt-nano-sort-t0-partials.json")
    ids = expected["idx"].long()
    seen: dict[str, torch.Tensor] = {}

    def watch(name: str, x: torch.Tensor) -> torch.Tensor:
        seen[name] = x
        return x

    traced = model(ids, tap=watch)
    # The residual stream reaches magnitudes near 10, where float32 steps by 1e-6; logits are held to 2e-6.
    for ours, theirs in STEPS.items():
        scale = max(1.0, expected[theirs].abs().max().item())
        torch.testing.assert_close(seen[ours], expected[theirs], atol=2e-6 * scale, rtol=0, msg=ours)
    exact = model.double()(ids)
    assert (exact - expected["lm_head"]).abs().max() <= 2e-6
    assert (traced - expected["lm_head"]).abs().max() <= 2e-6 * expected["lm_head"].abs().max()
    torch.testing.assert_close(exact.softmax(-1).float(), expected["probs"], atol=1e-6, rtol=0)


@torch.no_grad()
def test_the_other_gelu_is_visibly_another_function(shared: Path) -> None:
    folder = shared / "golden" / "llm_viz_gpt_nano"
    model = nano(tensors(folder / "gpt-nano-sort-model.json"), "gelu").double()
    expected = tensors(folder / "gpt-nano-sort-t0-partials.json")
    error = (model(expected["idx"].long()) - expected["lm_head"]).abs().max().item()
    assert error == pytest.approx(4.5e-3, rel=0.1)
