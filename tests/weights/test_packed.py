"""The packed format: int8 with a scale for each output, and int4 in groups of 32."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from glassgpt.backends.native import is_available
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.weights import (
    Checkpoint,
    convert,
    load_checkpoint,
    packed,
    panels,
    safetensors_file,
    save_checkpoint,
)
from tests.weights.conftest import VARIANTS, assert_same, random_checkpoint, save_rows


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


def test_rows_as_the_shipped_models_hold_them(small: Checkpoint, tmp_path: Path) -> None:
    save_rows(small, tmp_path / "rows")
    save_checkpoint(small, tmp_path / "panels", format="packed")
    rows, found = load_checkpoint(tmp_path / "rows"), load_checkpoint(tmp_path / "panels")
    assert_same(rows.tensors, found.tensors)
    assert rows.panels("wte.weight") is None
    assert rows.rows_in_file("wte.weight") is not None
    # Converted, they are the panels, bit for bit.
    assert convert(tmp_path / "rows", tmp_path / "again", dtype="int8").max_abs_error == 0
    assert (tmp_path / "again" / packed.FILE).read_bytes() == (tmp_path / "panels" / packed.FILE).read_bytes()


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
    with pytest.raises(SettingError, match="stores int8 or int4, not 'float16'"):
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


SHAPES = [(1, 1), (64, 32), (65, 33), (130, 100), (3, 257)]


def rows_of(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal(shape) * np.exp(rng.normal(size=(shape[0], 1)))).astype(np.float32)
    rows[0] = 0
    return rows


@pytest.mark.parametrize("shape", SHAPES)
def test_panels_hold_the_rows(shape: tuple[int, int]) -> None:
    values, _ = packed.quantize_rows(rows_of(shape))
    data = panels.panels_of_int8(values)
    assert data.shape == panels.shape_of_panels("int8", *shape)
    assert np.array_equal(panels.int8_of_panels(data, *shape), values)


@pytest.mark.parametrize("shape", SHAPES)
def test_int4_is_within_half_a_step(shape: tuple[int, int]) -> None:
    rows = rows_of(shape)
    data = panels.quantize_with_numpy(rows, panels.shape_of_panels("int4", *shape))
    assert data.nbytes * 8 == 4.5 * -(-shape[0] // 64) * 64 * -(-shape[1] // 32) * 32
    found = panels.floats_of_panels(data, *shape)
    assert found.shape == shape
    for first in range(0, shape[1], 32):
        group, back = rows[:, first : first + 32], found[:, first : first + 32]
        # A sixteenth of the range, or all of it at the largest value, which may be cut off.
        assert (np.abs(group - back) <= np.abs(group).max(axis=1, keepdims=True) / 7).all()
        assert np.square(group - back).mean() <= np.square(group).mean() / 100
    assert not found[0].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_native_engine_quantizes_to_the_same_bits(shape: tuple[int, int]) -> None:
    if not is_available():
        pytest.skip("the native engine was not built here")
    rows, stored = rows_of(shape, 1), panels.shape_of_panels("int4", *shape)
    for view in (rows, np.ascontiguousarray(rows.T).T):  # either order in memory
        assert np.array_equal(
            panels.quantize_natively(view, stored), panels.quantize_with_numpy(view, stored)
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_int4_round_trip(variant: str, tmp_path: Path) -> None:
    ours = random_checkpoint(**VARIANTS[variant])
    save_checkpoint(ours, tmp_path / "p", format="packed", dtype="int4")
    found = load_checkpoint(tmp_path / "p")
    assert (found.format, found.config) == ("packed", ours.config)
    for name, tensor in ours.tensors.items():
        stored = found.stored_dtype(name)
        assert stored == ("float32" if tensor.ndim == 1 else "int8" if name == "wpe.weight" else "int4")
        again = found.tensors[name]
        assert again.shape == tensor.shape
        error = np.square(again - tensor).mean() / np.square(tensor).mean()
        assert error < {"float32": 1e-12, "int8": 1e-4, "int4": 0.01}[stored]
        assert (found.panels(name) is not None) == (stored == "int4")
    # Unless another dtype is named it stays int4, bit for bit.
    report = convert(tmp_path / "p", tmp_path / "q", format="packed")
    assert report.max_abs_error == 0
    first, second = ((tmp_path / folder / packed.FILES["int4"]).read_bytes() for folder in "pq")
    assert first == second


@pytest.mark.parametrize("dtype", packed.DTYPES)
def test_the_matrices_of_a_file_can_be_mapped(small: Checkpoint, dtype: str, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "p", format="packed", dtype=dtype)
    found = load_checkpoint(tmp_path / "p" / packed.FILES[dtype])
    for name in ("wte.weight", "h.1.attn.c_attn.weight", "h.0.mlp.c_proj.weight"):
        mapped, read = found.panels(name, mapped=True), found.panels(name)
        assert mapped is not None
        assert read is not None
        assert (mapped.mapped, read.mapped, mapped.dtype) == (True, False, dtype)
        assert mapped.data.ctypes.data % 64 == 0  # on a cache line, as kernels want it
        assert not mapped.data.flags.writeable
        assert np.array_equal(mapped.data, read.data)


def test_without_a_format_the_dtype_decides(small: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "hf")
    for dtype in packed.DTYPES:
        assert convert(tmp_path / "hf", tmp_path / dtype, dtype=dtype).target_format == "packed"


@pytest.mark.parametrize("target", ["x.bin", "x.pt", "x.safetensors"])
def test_other_formats_refuse_int4(small: Checkpoint, target: str, tmp_path: Path) -> None:
    if target == "x.pt":
        pytest.importorskip("torch")
    save_checkpoint(small, tmp_path / "hf")
    with pytest.raises(SettingError, match="int4"):
        convert(tmp_path / "hf", tmp_path / target, dtype="int4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


def test_values_beyond_int4_are_refused(small: Checkpoint, tmp_path: Path) -> None:
    table = np.array(small.tensors["wte.weight"])
    table[3, 3] = 1e7  # its scale is no float16
    large = Checkpoint(small.config, {**small.tensors, "wte.weight": table})
    with pytest.raises(FileFormatError, match=r"too large for int4\. Use int8"):
        save_checkpoint(large, tmp_path / "p", format="packed", dtype="int4")
    save_checkpoint(large, tmp_path / "p", format="packed")


def test_panels_of_another_model_are_refused(small: Checkpoint, tmp_path: Path) -> None:
    for dtype in packed.DTYPES:
        save_checkpoint(small, tmp_path / dtype, format="packed", dtype=dtype)
        file = tmp_path / dtype / "config.json"
        config = json.loads(file.read_text())
        file.write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 64}))
        with pytest.raises(FileFormatError, match=rf"'wte.weight' of shape .* is no {dtype} matrix of shape"):
            load_checkpoint(tmp_path / dtype)
