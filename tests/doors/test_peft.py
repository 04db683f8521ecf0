"""Our adapters in the real PEFT, and PEFT's here, with the same logits. `make test-doors` installs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("peft", reason="peft is not installed: make test-doors installs it")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

import glassgpt
from glassgpt.errors import FileFormatError
from glassgpt.weights import load_checkpoint, save_checkpoint
from tests.conftest import SHIPPED
from tests.doors.adapters import write_adapter

IDS = [[5, 300, 17, 42, 900, 8]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peft") / "base"
    save_checkpoint(load_checkpoint(SHIPPED), folder, dtype="float32")
    return folder


def their_logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits.numpy()


def our_logits(folder: Path) -> np.ndarray:
    return glassgpt.load(folder, backend="torch", dtype="float32", device="cpu").logits(IDS)


def test_peft_opens_ours(base: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "ours", str(base))
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "ours")
    plain = our_logits(base)
    assert np.abs(their_logits(theirs) - our_logits(tmp_path / "ours")).max() < 1e-4
    assert np.abs(their_logits(theirs) - plain).max() > 1  # the adapter does something


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"r": 8, "lora_alpha": 24, "use_rslora": True, "target_modules": ["c_attn", "c_fc"]},
        {"alpha_pattern": {"h.1.mlp.c_fc": 40}, "rank_pattern": {"c_attn": 2}},
        {"bias": "all", "modules_to_save": ["ln_f"]},
    ],
)
def test_theirs_opens_here(base: Path, tmp_path: Path, options: dict[str, object]) -> None:
    settings = {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, **options}
    torch.manual_seed(0)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "theirs")
    assert np.abs(their_logits(model) - our_logits(tmp_path / "theirs")).max() < 1e-4


def test_what_peft_can_do_besides_is_refused_by_name(base: Path, tmp_path: Path) -> None:
    settings = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, use_dora=True)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings).save_pretrained(tmp_path)
    with pytest.raises(FileFormatError, match="use_dora is True"):
        glassgpt.load(tmp_path)
