"""A weight file that another program cuts short while it is open: one line, never a signal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import glassgpt
from glassgpt.backends.native import NativeBackend, is_available
from glassgpt.errors import FileFormatError, UserError
from glassgpt.weights import load_checkpoint, save_checkpoint
from tests.weights.conftest import random_checkpoint, save_rows

FILES = {
    "hf": ("m", "m/model.safetensors"),
    "packed": ("m", "m/model.int8.safetensors"),
    "llmc": ("m.bin", "m.bin"),
    "nanogpt": ("m.pt", "m.pt"),
    "gguf": ("m.gguf", "m.gguf"),
    "openai": ("m", "m/model.ckpt.data-00000-of-00001"),
}


@pytest.fixture(params=FILES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A model in each format, and its file of numbers."""
    model, file = (tmp_path / name for name in FILES[request.param])
    # Of several pages, for what is left of the last one can still be touched in a mapped file.
    save_checkpoint(random_checkpoint(n_embd=64), model, format=request.param)
    return model, file


def test_a_file_that_became_shorter_is_named(model: tuple[Path, Path]) -> None:
    path, file = model
    checkpoint = load_checkpoint(path)
    os.truncate(file, 8192)
    with pytest.raises(FileFormatError, match="became shorter while it was being read") as caught:
        sum(checkpoint.tensors[name].sum() for name in checkpoint.tensors)
    assert str(file) in str(caught.value)


def test_a_loaded_model_does_not_need_its_file(
    model: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSGPT_MMAP", "0")  # see below
    path, file = model
    gpt = glassgpt.load(path)
    expected = gpt.generate([1, 2, 3], max_new_tokens=8, temperature=0).tokens
    os.truncate(file, 0)
    assert gpt.generate([1, 2, 3], max_new_tokens=8, temperature=0).tokens == expected


@pytest.mark.skipif(not is_available(), reason="the native engine was not built here")
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_mapped_file_that_became_shorter_is_one_line(dtype: str, tmp_path: Path) -> None:
    """The process lives on, and so do models of other files."""
    for name in ("victim", "other"):
        save_checkpoint(random_checkpoint(n_embd=64), tmp_path / name, format="packed", dtype=dtype)
    gpt, other = (
        glassgpt.load(tmp_path / name, device="cpu", backend="native") for name in ("victim", "other")
    )
    expected = other.generate([1, 2, 3], max_new_tokens=8, temperature=0).tokens
    assert gpt.generate([1, 2, 3], max_new_tokens=8, temperature=0).tokens == expected
    os.truncate(tmp_path / "victim" / f"model.{dtype}.safetensors", 0)
    for _ in range(2):
        with pytest.raises(UserError, match="was truncated while it was in use; load the model again"):
            gpt.generate([1, 2, 3], max_new_tokens=8, temperature=0)
    assert other.generate([1, 2, 3], max_new_tokens=8, temperature=0).tokens == expected


@pytest.mark.skipif(not is_available(), reason="the native engine was not built here")
def test_rows_that_became_shorter_before_they_were_read(tmp_path: Path) -> None:
    save_rows(random_checkpoint(n_embd=64), tmp_path / "m")
    checkpoint = load_checkpoint(tmp_path / "m")
    file = tmp_path / "m" / "model.int8.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(UserError, match="became shorter while it was being read"):
        NativeBackend.load(checkpoint)


@pytest.mark.skipif(not is_available(), reason="the native engine was not built here")
def test_a_mapped_file_may_be_replaced(tmp_path: Path) -> None:
    """As every command here writes: under another name first."""
    save_checkpoint(random_checkpoint(n_embd=64), tmp_path / "m", format="packed")
    gpt = glassgpt.load(tmp_path / "m", device="cpu", backend="native")
    expected = gpt.generate([1, 2, 3], max_new_tokens=8, temperature=0).tokens
    save_checkpoint(random_checkpoint(n_embd=64, seed=1), tmp_path / "m", format="packed")
    assert gpt.generate([1, 2, 3], max_new_tokens=8, temperature=0).tokens == expected


def test_a_pickle_of_the_old_kind_is_read_at_once(tmp_path: Path) -> None:
    import torch

    save_checkpoint(random_checkpoint(), tmp_path / "m.pt", format="nanogpt")
    values = torch.load(tmp_path / "m.pt", weights_only=True)
    torch.save(values, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    new, old = load_checkpoint(tmp_path / "m.pt"), load_checkpoint(tmp_path / "old.pt")
    os.truncate(tmp_path / "old.pt", 0)
    for name in new.tensors:
        assert (new.tensors[name] == old.tensors[name]).all()
