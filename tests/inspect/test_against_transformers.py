"""Traces beside what Hugging Face's model gives out of itself, with the same numbers in it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from glassgpt.config import Config
from tests.model.test_against_transformers import VARIANTS, twin

from .conftest import random_model, some_ids

SOME = ("narrow MLP", "untied head", "scaled by layer", "unscaled scores", "wide epsilon", "activation gelu")


@torch.no_grad()
@pytest.mark.parametrize("variant", ["as published", *SOME])
def test_attentions_and_hidden_states(variant: str) -> None:
    config = Config(
        vocab_size=211, n_positions=40, n_embd=48, n_layer=3, n_head=4, **VARIANTS.get(variant, {})
    )  # type: ignore[arg-type]
    gpt = random_model(config, seed=7)
    ids = some_ids(40, config=config)
    theirs = twin(gpt.backend.model)
    theirs.set_attn_implementation("eager")  # the fused kernels keep no attention to show
    rough = theirs(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
    exact = copy.deepcopy(theirs).double()(
        torch.tensor([ids]), output_attentions=True, output_hidden_states=True
    )
    trace = gpt.trace(ids)

    def close(ours: np.ndarray, rough: torch.Tensor, exact: torch.Tensor, what: str) -> None:
        # Allowed is a multiple of the rounding that transformers' own float32 shows, or of one rounding.
        size = exact.abs().max().item()
        rounding = max((rough.double() - exact).abs().max().item(), size * torch.finfo(torch.float32).eps)
        assert np.abs(ours - exact[0].numpy()).max() <= 4 * rounding, what

    for layer in range(3):
        close(trace.attention[layer], rough.attentions[layer], exact.attentions[layer], f"attention {layer}")
        close(
            trace.residual[layer], rough.hidden_states[layer], exact.hidden_states[layer], f"stream {layer}"
        )
    close(
        trace["ln_f"], rough.hidden_states[3], exact.hidden_states[3], "ln_f"
    )  # theirs is normed at the end
    close(trace.logits, rough.logits, exact.logits, "logits")
