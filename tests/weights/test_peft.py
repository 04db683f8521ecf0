"""Folders of PEFT, without PEFT: what is read and written, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, ModelNotFoundError, SettingError
from glassgpt.weights import load_checkpoint, load_config, save_checkpoint
from glassgpt.weights.adapter import save_adapter
from glassgpt.weights.peft import ABOUT, FILE
from glassgpt.weights.registry import detect_format, load_adapter, resolve_model
from tests.conftest import SHIPPED
from tests.doors.adapters import write_adapter

MATRIX = "h.1.mlp.c_fc.weight"
STORED = "base_model.model.transformer.h.1.mlp.c_fc.lora_"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", SHIPPED)


def change(folder: Path, **fields: Any) -> None:
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps({**about, **fields}))


def test_it_is_the_model_with_its_changes(folder: Path) -> None:
    stored = load_file(folder / FILE)
    base, adapted = load_checkpoint(SHIPPED), load_checkpoint(folder)
    assert detect_format(folder) == adapted.format == "peft"
    product = (stored[f"{STORED}B.weight"] @ stored[f"{STORED}A.weight"]).T
    assert np.allclose(adapted.tensors[MATRIX], base.tensors[MATRIX] + product, atol=1e-6)
    assert (adapted.tensors["wte.weight"] == base.tensors["wte.weight"]).all()
    assert adapted.tokenizer is not None
    assert load_config(folder) == base.config


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({"lora_alpha": 12}, 3.0),
        ({"lora_alpha": 12, "use_rslora": True}, 6.0),
        ({"alpha_pattern": {"c_fc": 2}}, 0.5),
        ({"alpha_pattern": {r"h\.[12]\.mlp\.c_fc": 2}}, 0.5),
        ({"alpha_pattern": {"c_f": 2, "(": 3}}, 1.0),
        ({"alpha_pattern": {"a{99999999999}": 2}}, 1.0),
    ],
)
def test_the_scale_is_pefts(folder: Path, fields: dict[str, Any], scale: float) -> None:
    config = load_config(SHIPPED)
    before = load_adapter(folder, config, SHIPPED)[MATRIX]
    change(folder, **fields)
    after = load_adapter(folder, config, SHIPPED)[MATRIX]
    assert (after[0] == before[0]).all()
    assert np.allclose(after[1], scale * before[1])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"base_model_name_or_path": None}, "must name a model"),
        ({"lora_alpha": "much"}, "lora_alpha is 'much'"),
        ({"lora_alpha": 10**400}, "lora_alpha is a whole number of about 401 digits"),
        ({"lora_alpha": 1e308}, "lora_alpha is 1e\\+308"),
        ({"alpha_pattern": {"(.+)+x": 3}}, r"the alpha_pattern '\(\.\+\)\+x' is too complex"),
        ({"alpha_pattern": {".*.*.*.*x": 3}}, "is too complex"),
        ({"alpha_pattern": {f"{n}.*": 3 for n in range(1001)}}, "alpha_pattern has 1,001 names"),
    ],
)
def test_what_is_not_low_rank_is_refused(folder: Path, fields: dict[str, Any], says: str) -> None:
    change(folder, **fields)
    with pytest.raises(FileFormatError, match=says):
        load_checkpoint(folder)


def test_a_rank_beyond_every_matrix_is_refused(folder: Path) -> None:
    stored = load_file(folder / FILE)
    columns, rows = stored[f"{STORED}A.weight"].shape[1], stored[f"{STORED}B.weight"].shape[0]
    stored[f"{STORED}A.weight"] = np.zeros((4096, columns), np.float32)
    stored[f"{STORED}B.weight"] = np.zeros((rows, 4096), np.float32)
    save_file(stored, folder / FILE)
    with pytest.raises(FileFormatError, match="has rank 4,096, more than"):
        load_checkpoint(folder)


def test_a_base_that_is_an_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    change(folder, base_model_name_or_path=str(folder))
    with pytest.raises(FileFormatError, match="another adapter"):
        load_checkpoint(folder)
    change(folder, base_model_name_or_path="./gone")
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        load_checkpoint(folder)


def test_a_base_beside_the_adapter_is_found(folder: Path) -> None:
    save_checkpoint(load_checkpoint(SHIPPED), folder.parent / "base", dtype="float32")
    change(folder, base_model_name_or_path="../base")
    assert load_checkpoint(folder).config == load_checkpoint(SHIPPED).config


def test_a_pickled_file_is_not_opened(folder: Path) -> None:
    (folder / FILE).rename(folder / "adapter_model.bin")
    with pytest.raises(FileFormatError, match="safe_serialization=True"):
        load_checkpoint(folder)


def test_only_matrices_of_blocks_share_their_model(folder: Path, tmp_path: Path) -> None:
    config = load_config(SHIPPED)
    stored = load_file(folder / FILE)
    bias = {"base_model.model.transformer.ln_f.bias": np.ones(config.n_embd, np.float32)}
    save_file({**stored, **bias}, folder / FILE)
    assert (load_checkpoint(folder).tensors["ln_f.bias"] == 1).all()
    with pytest.raises(FileFormatError, match=r"changes 'ln_f\.bias' as well.*--model adapter="):
        load_adapter(folder, config, SHIPPED)
    save_file({**stored, f"{STORED}A.weight": stored[f"{STORED}A.weight"] * np.inf}, folder / FILE)
    with pytest.raises(FileFormatError, match="not finite"):
        load_adapter(folder, config, SHIPPED)
    with pytest.raises(FileFormatError, match="does not fit"):
        load_adapter(folder, Config(n_embd=16, n_head=2, n_layer=12), "another")
    save_file({"base_model.model.lm_head.lora_embedding_A": np.ones((2, 2), np.float32)}, folder / FILE)
    with pytest.raises(FileFormatError, match="not a LoRA factor"):
        load_checkpoint(folder)
    with pytest.raises(FileFormatError, match="whole model"):
        load_adapter(resolve_model(SHIPPED)[0], config, SHIPPED)


def test_our_own_adapters_are_shared_too(folder: Path, tmp_path: Path) -> None:
    config = load_config(SHIPPED)
    factors = load_adapter(folder, config, SHIPPED)
    changes = {
        f"{name}.lora_{x}": factor
        for name, pair in factors.items()
        for x, factor in zip("AB", pair, strict=True)
    }
    save_adapter(changes, config, SHIPPED, tmp_path / "own")
    own = load_adapter(tmp_path / "own", config, SHIPPED)
    assert all((own[name][i] == factors[name][i]).all() for name in factors for i in (0, 1))


def test_it_is_written_by_tune_alone() -> None:
    with pytest.raises(SettingError, match="written by glassgpt tune only"):
        save_checkpoint(load_checkpoint(SHIPPED), "x", "peft")
