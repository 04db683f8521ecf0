"""nnsight, minicons, peft and bertviz open the model, unmodified."""

from __future__ import annotations

import numpy as np
import pytest
import torch

TEXT = "The old house stood at the end of the lane"


@pytest.fixture
def both(gpt):
    pytest.importorskip("transformers", reason="transformers is in .venv-lab: make test-lab installs it")
    return gpt.to_transformers()


def test_nnsight(gpt, both, folder) -> None:
    nnsight = pytest.importorskip("nnsight", reason="nnsight is in .venv-lab: make test-lab installs it")
    for model in (
        nnsight.LanguageModel(both[0], tokenizer=both[1]),
        nnsight.LanguageModel(str(folder), device_map="cpu", dispatch=True),
    ):
        with model.trace(TEXT):
            stream = model.transformer.h[2].output.save()
        stream = stream[0] if isinstance(stream, tuple) else stream
        found = stream.detach().numpy().reshape(-1, gpt.config.n_embd)
        np.testing.assert_allclose(found, gpt.trace(TEXT).resid_post[2], atol=1e-4)


def test_minicons(gpt, both, folder) -> None:
    scorer = pytest.importorskip(
        "minicons.scorer", reason="minicons is in .venv-lab: make test-lab installs it"
    )
    nats = gpt.trace(TEXT).token_loss.nats[1:]
    for model, more in ((both[0], {"tokenizer": both[1]}), (str(folder), {})):
        found = scorer.IncrementalLMScorer(model, "cpu", **more).token_score(TEXT, surprisal=True)[0]
        np.testing.assert_allclose([score for _, score in found][1:], nats, atol=1e-4)


def test_peft(gpt, both) -> None:
    peft = pytest.importorskip("peft", reason="peft is in .venv-lab: make test-lab installs it")
    model = peft.get_peft_model(both[0], peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    ids = torch.tensor([gpt.encode(TEXT)])
    logits = model(ids).logits[0]
    np.testing.assert_allclose(logits.detach().numpy(), gpt.trace(TEXT).logits, atol=1e-4, rtol=1e-4)
    model(ids, labels=ids).loss.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters() if p.requires_grad)


def test_bertviz(gpt, both, folder) -> None:
    bertviz = pytest.importorskip("bertviz", reason="bertviz is in .venv-lab: make test-lab installs it")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids = gpt.encode(TEXT)
    with torch.no_grad():
        attention = model(torch.tensor([ids]), output_attentions=True).attentions
    for layer in range(gpt.config.n_layer):
        np.testing.assert_allclose(attention[layer][0], gpt.trace(TEXT).attention[layer], atol=1e-5)
    page = bertviz.head_view(attention, [gpt.decode([i]) for i in ids], html_action="return")
    assert " house" in page.data
