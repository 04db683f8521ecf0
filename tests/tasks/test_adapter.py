"""Adapters: a model with low-rank changes, and what does not fit it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassgpt.errors import FileFormatError, ModelNotFoundError, SettingError
from glassgpt.weights import load_checkpoint, save_checkpoint
from glassgpt.weights.adapter import save_adapter
from tests.tasks.conftest import make_model

MATRIX = "h.1.mlp.c_fc.weight"  # (32, 128)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_checkpoint(make_model("tldr"), tmp_path / "base")
    return tmp_path / "base"


def write(folder: Path, base: Path, **changes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """An adapter with random tensors of these shapes; `__` in a name stands for a dot."""
    draw = np.random.default_rng(0)
    tensors = {
        name.replace("__", "."): draw.standard_normal(shape).astype(np.float16)
        for name, shape in changes.items()
    }
    save_adapter(tensors, load_checkpoint(base).config, str(base), folder, 'format = "{source}{target}"')
    return tensors


def test_it_is_the_model_with_its_changes(base: Path, tmp_path: Path) -> None:
    factors = {"h__1__mlp__c_fc__weight__lora_A": (32, 3), "h__1__mlp__c_fc__weight__lora_B": (3, 128)}
    tensors = write(tmp_path / "a", base, **factors, ln_f__bias=(32,))
    plain, adapted = load_checkpoint(base), load_checkpoint(tmp_path / "a")
    assert adapted.format == "adapter"
    assert adapted.task == 'format = "{source}{target}"'
    a, b = (tensors[f"{MATRIX}.lora_{x}"].astype(np.float32) for x in "AB")
    assert np.allclose(adapted.tensors[MATRIX], plain.tensors[MATRIX] + a @ b, atol=1e-6)
    assert (adapted.tensors["ln_f.bias"] == tensors["ln_f.bias"]).all()
    unchanged = set(plain.tensors) - {MATRIX, "ln_f.bias"}
    assert all((adapted.tensors[name] == plain.tensors[name]).all() for name in unchanged)


@pytest.mark.parametrize(
    "changes",
    [
        {"h__1__mlp__c_fc__weight__lora_A": (31, 3), "h__1__mlp__c_fc__weight__lora_B": (3, 128)},
        {"h__1__mlp__c_fc__weight__lora_A": (32, 3), "h__1__mlp__c_fc__weight__lora_B": (4, 128)},
        {"h__1__mlp__c_fc__weight__lora_B": (3, 128)},
        {"ln_f__bias": (33,)},
        {"wte__weight__added": (1, 31)},
    ],
)
def test_a_tensor_of_another_shape_is_refused(
    base: Path, tmp_path: Path, changes: dict[str, tuple[int, ...]]
) -> None:
    write(tmp_path / "a", base, **changes)
    with pytest.raises(FileFormatError, match="does not fit"):
        load_checkpoint(tmp_path / "a")


def test_other_mistakes(base: Path, tmp_path: Path) -> None:
    write(tmp_path / "a", base, nothing__weight=(3,))
    with pytest.raises(FileFormatError, match=r"has no tensor 'nothing\.weight'"):
        load_checkpoint(tmp_path / "a")
    write(tmp_path / "b", base, ln_f__bias=(32,))
    (tmp_path / "b" / "adapter.json").write_text(json.dumps({"base_model": 3}))
    with pytest.raises(FileFormatError, match="base_model is 3"):
        load_checkpoint(tmp_path / "b")
    (tmp_path / "b" / "adapter.json").write_text(json.dumps({"base_model": "./gone"}))
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        load_checkpoint(tmp_path / "b")
    (tmp_path / "b" / "adapter.json").write_text(json.dumps({"base_model": "."}))
    with pytest.raises(FileFormatError, match="another adapter"):
        load_checkpoint(tmp_path / "b")
    (tmp_path / "b" / "adapter.json").write_text(json.dumps({"base_model": "~nosuchuser/x"}))
    with pytest.raises(SettingError, match=r"~nosuchuser/x: there is no user nosuchuser"):
        load_checkpoint(tmp_path / "b")
    write(tmp_path / "c", base, h__1__mlp__c_fc__weight__lora_A=(32, 3))
    with pytest.raises(FileFormatError, match=r"weight\.lora_A' has no lora_B"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_head": 8}, "n_head is 8, and that of"),
        ({"activation_function": "relu"}, "activation_function is 'relu'"),
        ({"attention": "relative"}, "attention is 'relative'"),
        ({"layer_norm_epsilon": 0.1}, "layer_norm_epsilon is 0.1"),
        ({"n_inner": 64}, "n_inner is 64"),
        ({"n_layer": 1}, "n_layer is 1"),
        ({"n_positions": 8}, "n_positions is 8"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ],
)
def test_it_computes_as_its_model_does(
    base: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    write(tmp_path / "a", base, ln_f__bias=(32,))
    file = tmp_path / "a" / "config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "resid_pdrop": 0.3, "n_inner": 4 * values["n_embd"]}))
    load_checkpoint(tmp_path / "a")
    file.write_text(json.dumps({**values, **changes}))
    with pytest.raises(FileFormatError, match=re.escape(words)):
        load_checkpoint(tmp_path / "a")
    with pytest.raises(SettingError, match="'adapter' is written by glassgpt tune only"):
        save_checkpoint(load_checkpoint(base), tmp_path / "c", "adapter")
