"""A trace in a file: everything comes back, and an invalid file is rejected."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.gpt import GPT
from glassgpt.inspect import Patch, Trace
from glassgpt.inspect.taps import list_steps

from .conftest import SMALL, random_model, some_ids

IDS = some_ids(7)


@pytest.fixture(scope="module")
def file(gpt: GPT, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "t.safetensors"
    gpt.trace(IDS).save(path)
    return path


def test_all_of_it_comes_back(gpt: GPT, file: Path) -> None:
    trace, loaded = gpt.trace(IDS), Trace.load(file)
    assert loaded.tokens == IDS
    assert loaded.texts == trace.texts
    assert (loaded.config, loaded.name) == (SMALL, "random")
    for name in list_steps(SMALL):
        np.testing.assert_array_equal(loaded[name], trace[name], err_msg=name)
    np.testing.assert_array_equal(loaded.attention[2, 1], trace.attention[2, 1])
    np.testing.assert_array_equal(loaded.norms, trace.norms)
    np.testing.assert_array_equal(loaded.token_loss.rank, trace.token_loss.rank)
    np.testing.assert_array_equal(loaded.lens(4).ids, trace.lens(10).ids[..., :4])
    np.testing.assert_array_equal(loaded.lens().texts, trace.lens().texts)
    np.testing.assert_array_equal(loaded.logits_at(3), trace.logits_at(3))
    np.testing.assert_allclose(loaded.p_at(3), trace.p_at(3), rtol=1e-6)


def test_others_can_read_it(gpt: GPT, file: Path) -> None:
    found = load_file(file)
    assert set(found) == {*list_steps(SMALL), "tokens", "token_loss", "norms", "lens.ids", "lens.p"}
    np.testing.assert_array_equal(found["h.1.attn.weights"], gpt.trace(IDS)["h.1.attn.weights"])


def test_a_part_of_it(gpt: GPT, tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    gpt.trace(IDS).save(path, ["h.*.attn.weights", "ln_f"])
    loaded = Trace.load(path)
    assert loaded.attention[0, 0].shape == (7, 7)
    assert loaded.norms.shape == (4, 7)
    with pytest.raises(UserError, match=r"h\.0\.attn\.q is not in this file"):
        loaded.attn.q[0, 0]
    with pytest.raises(UserError, match="fewer than 11"):
        loaded.lens(11)
    with pytest.raises(UserError, match="loaded without its model"):
        loaded.append(3)
    full = Trace.load(path, gpt)
    np.testing.assert_array_equal(full.attn.q[0, 0], gpt.trace(IDS).attn.q[0, 0])
    assert full.lens(20).ids.shape == (4, 7, 20)
    assert len(full.append(3)) == 8
    with pytest.raises(SettingError, match="no step matches 'attention'"):
        full.save(tmp_path / "x", "attention")
    with pytest.raises(UserError, match="not of the shape"):
        Trace.load(path, random_model(VARIANT))


VARIANT = type(SMALL)(vocab_size=101, n_positions=48, n_embd=16, n_layer=3, n_head=4)


def test_a_patch_from_a_file(gpt: GPT, file: Path) -> None:
    other = some_ids(7, seed=9)
    done = gpt.intervene(other, Patch("h.0.resid_post", Trace.load(file)))
    np.testing.assert_array_equal(done.after.logits, gpt.trace(IDS).logits)


def test_numbers_of_another_machine_are_not_compared_with_ours(gpt: GPT, file: Path, tmp_path: Path) -> None:
    """A file's numbers may be rounded otherwise; an intervention computes both of its sides here."""
    path = tmp_path / "elsewhere.safetensors"
    data = bytearray(file.read_bytes())
    data[-4:] = np.float32(9).tobytes()  # the last number of the last tensor, logits
    path.write_bytes(data)
    loaded = Trace.load(path, gpt)
    assert loaded.logits[-1, -1] == 9
    assert gpt.intervene(loaded).kl == 0
    assert gpt.intervene(loaded).logits_before[-1] != 9


def rewritten(file: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file with another header over the same bytes."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    return path


def about(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    def in_header(header: dict[str, Any]) -> None:
        values = json.loads(header["__metadata__"]["trace"])
        change(values)
        header["__metadata__"]["trace"] = json.dumps(values)

    return in_header


INVALID: dict[str, Callable[[dict[str, Any]], object]] = {
    "no metadata": lambda h: h.pop("__metadata__"),
    "another format": lambda h: h["__metadata__"].update(format="glassgpt trace 9"),
    "not json": lambda h: h["__metadata__"].update(trace="{"),
    "a list": lambda h: h["__metadata__"].update(trace="[]"),
    "deep json": lambda h: h["__metadata__"].update(trace="[" * 200_000),
    "no config": about(lambda a: a.pop("config")),
    "a huge config": about(lambda a: a["config"].update(n_layer=10**9)),
    "a config of another width": about(lambda a: a["config"].update(n_embd=64)),
    "texts of numbers": about(lambda a: a.update(texts=[1] * 7)),
    "fewer texts": about(lambda a: a["texts"].pop()),
    "lens of other keys": about(lambda a: a["lens"].update({"x": "y"})),
    "a vocabulary too large": about(lambda a: a.update(vocabulary=102)),
    "an unknown step": lambda h: h.update({"h.0.attn.nothing": h.pop("h.0.attn.q")}),
    "a block too many": lambda h: h.update({"h.3.attn.q": h.pop("h.0.attn.q")}),
    "a step of not of the shape": lambda h: h["h.0.attn.q"].update(shape=[7, 4, 8]),
    "a step of whole numbers": lambda h: h["h.0.attn.q"].update(dtype="I32"),
    "no tokens": lambda h: h.update({"wte2": h.pop("tokens")}),
    "tokens without an axis": lambda h: h["tokens"].update(shape=[7, 1]),
    "tokens outside the vocabulary": about(lambda a: a["config"].update(vocab_size=5)),
    "a dtype it cannot be": lambda h: h["norms"].update(dtype="Q9"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_header(file: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        Trace.load(rewritten(file, tmp_path / "invalid.safetensors", INVALID[name]))
    assert "invalid.safetensors" in str(caught.value)
    assert len(str(caught.value)) < 1500


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 4000), byte=st.integers(0, 255), cut=st.integers(0, 4000) | st.none())
def test_a_broken_file(file: Path, at: int, byte: int, cut: int | None, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("broken") / "t.safetensors"
    data = bytearray(file.read_bytes())
    data[at] = byte
    path.write_bytes(data if cut is None else data[:-cut] if cut else data)
    try:
        trace = Trace.load(path)
        trace.lens(), trace.token_loss, trace.attention[0, 0]
    except UserError:
        pass  # refused in one line; a byte that changes a number or a text may also pass


def test_no_file_and_no_trace(tmp_path: Path, gpt: GPT) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        Trace.load(tmp_path / "none")
    with pytest.raises(FileFormatError, match="folder"):
        Trace.load(tmp_path)
