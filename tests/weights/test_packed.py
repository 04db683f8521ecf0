"""The shipped format: int8 rows with a scale each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.weights import Checkpoint, convert, load_checkpoint, packed, safetensors_file, save_checkpoint
from tests.weights.conftest import VARIANTS, assert_same, random_checkpoint


@given(
    arrays.arrays(
        np.float32, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=st.floats(-1e3, 1e3, width=32)
    )
)
@settings(max_examples=200, deadline=None)
def test_no_number_moves_by_more_than_half_a_step(rows: np.ndarray) -> None:
    values, scale = packed.quantize_rows(rows)
    assert values.dtype == np.int8
    assert scale.dtype == np.float32
    error = np.abs(packed.dequantize_rows(values, scale) - rows)
    # Half a step, and the rounding of dividing and multiplying back in float32.
    slack = 4 * np.finfo(np.float32).eps * np.abs(rows).max(axis=1, keepdims=True) + 1e-36
    assert (error <= scale[:, None] / 2 + slack).all()
    assert np.array_equal(
        packed.dequantize_transposed(values, scale), packed.dequantize_rows(values, scale).T
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_round_trip_is_within_half_a_step_and_vectors_are_exact(variant: str, tmp_path: Path) -> None:
    ours = random_checkpoint(**VARIANTS[variant])
    save_checkpoint(ours, tmp_path / "p", format="packed")
    found = load_checkpoint(tmp_path / "p")
    assert found.format == "packed"
    assert found.config == ours.config
    for name, tensor in ours.tensors.items():
        if tensor.ndim == 1:
            assert np.array_equal(found.tensors[name], tensor)
            assert found.packed(name) is None
            continue
        both = found.packed(name)
        assert both is not None
        values, scale = both
        per_output = tensor if name in ("wte.weight", "wpe.weight", "lm_head.weight") else tensor.T
        assert values.shape == per_output.shape  # rows are output numbers: what a dot product wants
        assert np.abs(values[:, :, None]).max() == 127
        half_step = np.abs(per_output).max(axis=1) / 127 / 2
        error = np.abs(values * scale[:, None] - per_output).max(axis=1)
        assert (error <= half_step * (1 + 1e-5)).all()
        transposed = per_output is not tensor
        dequantize_rows = np.multiply(values, scale[:, None], dtype=np.float32)
        assert np.array_equal(found.tensors[name], dequantize_rows.T if transposed else dequantize_rows)


def test_packing_again_changes_nothing(small: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "p", format="packed")
    once = load_checkpoint(tmp_path / "p")
    report = convert(tmp_path / "p", tmp_path / "q", format="packed")
    assert report.max_abs_error == 0
    name = packed.FILE
    assert (tmp_path / "p" / name).read_bytes() == (tmp_path / "q" / name).read_bytes()
    assert_same(load_checkpoint(tmp_path / "q").tensors, once.tensors)


def test_the_report_gives_the_error_of_every_tensor(small: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "hf")
    report = convert(tmp_path / "hf", tmp_path / "p", format="packed")
    packed_model = packed.pack(small)
    for entry in report:
        error = np.abs(packed_model.tensors[entry.name] - small.tensors[entry.name]).max()
        assert entry.max_abs_error == pytest.approx(float(error))
        assert entry.target_dtype == ("int8" if len(entry.shape) == 2 else "float32")
        assert (entry.max_abs_error > 0) == (len(entry.shape) == 2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_dtypes_on_asking(small: Checkpoint, dtype: str, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "p", format="packed")
    entire, half = packed.load(tmp_path / "p"), packed.load(tmp_path / "p", dtype)
    for name in entire.tensors:
        assert half.tensors[name].dtype.name == dtype
        assert np.array_equal(half.tensors[name], entire.tensors[name].astype(half.tensors[name].dtype))


def test_a_row_of_zeros_stays_zero(small: Checkpoint) -> None:
    table = np.array(small.tensors["wte.weight"])
    table[7] = 0
    model = packed.pack(Checkpoint(small.config, {**small.tensors, "wte.weight": table}))
    assert not model.tensors["wte.weight"][7].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_cannot_be_packed(small: Checkpoint, bad: float, tmp_path: Path) -> None:
    table = np.array(small.tensors["wte.weight"])
    table[3, 3] = bad
    broken = Checkpoint(small.config, {**small.tensors, "wte.weight": table})
    with pytest.raises(FileFormatError, match=r"'wte\.weight' contains NaN or infinity"):
        save_checkpoint(broken, tmp_path / "p", format="packed")
    assert list(tmp_path.iterdir()) == []


def test_no_other_dtype_can_be_written(small: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="stores int8, not 'float16'"):
        save_checkpoint(small, tmp_path / "p", format="packed", dtype="float16")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.pop("wte.weight.scale"), "int8 tensor 'wte.weight' has no .scale"),
        (lambda t: t.pop("wte.weight"), "'wte.weight.scale' scales a tensor that is not there"),
        (
            lambda t: t.update({"wte.weight.scale": np.ones(5, np.float32)}),
            "no .scale with one value per row",
        ),
        (lambda t: t.pop("ln_f.bias"), "tensor 'ln_f.bias' of shape (32,) is missing"),
    ],
)
def test_wrong_files_are_explained(small: Checkpoint, spoil: object, words: str, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "p", format="packed")
    entries, metadata = safetensors_file.open_tensors(tmp_path / "p" / packed.FILE)
    tensors = {
        name: np.array(entry.read()) for name, entry in entries.items()
    }  # the file is overwritten below
    spoil(tensors)  # type: ignore[operator]
    outgoing = [
        safetensors_file.TensorToWrite(n, a.shape, a.dtype, lambda a=a: a) for n, a in tensors.items()
    ]
    safetensors_file.write_tensors(tmp_path / "p" / packed.FILE, outgoing, metadata)
    with pytest.raises(FileFormatError, match=re.escape(words)):
        load_checkpoint(tmp_path / "p")


def test_shipped_models_load_by_name(
    small: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassgpt.weights.registry.DATA", tmp_path)
    save_checkpoint(small, tmp_path / "default", format="packed")
    found = load_checkpoint("default")
    assert (found.source, found.format) == ("default", "packed")
    assert json.loads((tmp_path / "default" / "config.json").read_text())["model_type"] == "gpt2"


@pytest.mark.filterwarnings("error")
def test_a_damaged_scale_makes_no_warning() -> None:
    values, scale = np.full((2, 3), 127, np.int8), np.array([3e38, np.inf], np.float32)
    values[1, 0] = 0
    assert np.isinf(packed.dequantize_rows(values, scale)[0]).all()
    assert np.isnan(packed.dequantize_transposed(values, scale)[0, 1])
