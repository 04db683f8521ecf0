"""llm.c's `.bin`, against a file laid out here number by number."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.weights import Checkpoint, load_checkpoint, save_checkpoint
from tests.weights.conftest import assert_same, random_checkpoint

V, T, C, L, H = 301, 24, 32, 2, 4


def by_hand(checkpoint: Checkpoint, version: int, dtype: type, padded: int) -> bytes:
    """The file as llm.c's own description lays it out, written without our writer's help."""
    t = checkpoint.tensors
    header = np.zeros(256, "<i4")
    header[:8] = [20240326, version, T, V, L, H, C, padded if version in (3, 5) else 0]
    table = np.zeros((max(V, padded), C), np.float32)
    table[:V] = t["wte.weight"]
    parts = [table, t["wpe.weight"]]
    for kind in ("ln_1.weight", "ln_1.bias"):
        parts += [t[f"h.0.{kind}"], t[f"h.1.{kind}"]]
    parts += [t["h.0.attn.c_attn.weight"].T, t["h.1.attn.c_attn.weight"].T]
    parts += [t["h.0.attn.c_attn.bias"], t["h.1.attn.c_attn.bias"]]
    parts += [t["h.0.attn.c_proj.weight"].T, t["h.1.attn.c_proj.weight"].T]
    for kind in ("attn.c_proj.bias", "ln_2.weight", "ln_2.bias"):
        parts += [t[f"h.0.{kind}"], t[f"h.1.{kind}"]]
    parts += [t["h.0.mlp.c_fc.weight"].T, t["h.1.mlp.c_fc.weight"].T]
    parts += [t["h.0.mlp.c_fc.bias"], t["h.1.mlp.c_fc.bias"]]
    parts += [t["h.0.mlp.c_proj.weight"].T, t["h.1.mlp.c_proj.weight"].T]
    parts += [t["h.0.mlp.c_proj.bias"], t["h.1.mlp.c_proj.bias"]]
    parts += [t["ln_f.weight"], t["ln_f.bias"]]
    return header.tobytes() + b"".join(np.ascontiguousarray(part).astype(dtype).tobytes() for part in parts)


@pytest.mark.parametrize(
    ("version", "dtype", "padded"),
    [
        (3, np.float32, 384),
        (5, ml_dtypes.bfloat16, 384),
        (1, np.float32, 0),
        (2, np.float32, 0),
        (3, ml_dtypes.bfloat16, 0),  # the first version 3, before padding came in
    ],
)
def test_reads_every_version(version: int, dtype: type, padded: int, tmp_path: Path) -> None:
    ours = random_checkpoint("float32" if dtype is np.float32 else "bfloat16")
    (tmp_path / "model.bin").write_bytes(by_hand(ours, version, dtype, padded))
    found = load_checkpoint(tmp_path / "model.bin")
    assert found.format == "llmc"
    assert found.config == ours.config
    assert_same(found.tensors, ours.tensors)


@pytest.mark.parametrize(("dtype", "version"), [("float32", 3), ("bfloat16", 5)])
def test_writes_the_current_version_byte_for_byte(dtype: str, version: int, tmp_path: Path) -> None:
    ours = random_checkpoint(dtype)
    save_checkpoint(ours, tmp_path / "model.bin", format="llmc")
    wanted = by_hand(ours, version, np.float32 if dtype == "float32" else ml_dtypes.bfloat16, 384)
    assert (tmp_path / "model.bin").read_bytes() == wanted


def test_half_precision_becomes_float32_without_loss(tmp_path: Path) -> None:
    ours = random_checkpoint("float16")
    save_checkpoint(ours, tmp_path / "model.bin", format="llmc")
    wanted = {name: tensor.astype(np.float32) for name, tensor in ours.tensors.items()}
    assert_same(load_checkpoint(tmp_path / "model.bin").tensors, wanted)


def test_float16_cannot_be_asked_for(small: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="float32 or bfloat16, not 'float16'"):
        save_checkpoint(small, tmp_path / "model.bin", format="llmc", dtype="float16")


@pytest.mark.parametrize("change", [-4, 4])
def test_a_file_of_another_length_is_refused(small: Checkpoint, change: int, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "model.bin", format="llmc")
    data = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(FileFormatError, match="header describes"):
        load_checkpoint(tmp_path / "model.bin")


def test_an_unknown_version_is_refused(small: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(by_hand(small, 9, np.float32, 0))
    with pytest.raises(FileFormatError, match="version 9"):
        load_checkpoint(tmp_path / "model.bin")
