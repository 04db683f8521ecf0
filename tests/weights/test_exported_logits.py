"""A model that went through our hands answers in `transformers` exactly as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from glassgpt.weights import convert


@pytest.mark.parametrize("through", ["hf", "nanogpt", "llmc", "gguf", "openai"])
@torch.no_grad()
def test_no_logit_changes(through: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=320, n_positions=64, n_embd=64, n_layer=3, n_head=2)
    config.activation_function = "gelu" if through == "nanogpt" else "gelu_new"  # nanoGPT computes this one
    original = transformers.GPT2LMHeadModel(config).eval()
    original.save_pretrained(tmp_path / "original")
    between = tmp_path / {"nanogpt": "ckpt.pt", "llmc": "model.bin", "gguf": "m.gguf"}.get(through, "folder")
    convert(tmp_path / "original", between, format=through)
    convert(between, tmp_path / "exported", format="hf")
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    ids = torch.randint(0, 320, (4, 64))
    assert torch.equal(exported(ids).logits, original(ids).logits)
