"""Damaged files: whatever happens to the bytes, the answer is a model or one line, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassgpt.errors import UserError
from glassgpt.weights import load_checkpoint, save_checkpoint
from tests.weights.conftest import random_checkpoint

FILES = {
    "hf": ("m.safetensors", "m.safetensors"),
    "packed": ("m", "m/model.int8.safetensors"),
    "llmc": ("m.bin", "m.bin"),
    "nanogpt": ("m.pt", "m.pt"),
}


@pytest.fixture(scope="module", params=FILES)
def sound(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, bytes]:
    """A model, its one weight file, and that file's bytes."""
    folder = tmp_path_factory.mktemp(request.param)
    model, file = (folder / name for name in FILES[request.param])
    checkpoint = random_checkpoint(vocab_size=8, n_positions=4, n_embd=8, n_layer=1, n_head=2)
    save_checkpoint(checkpoint, model, format=request.param)
    return model, file, file.read_bytes()


# Most of a file is numbers, where damage cannot be told from training: aim at both ends, where structure is.
places = st.one_of(st.integers(0, 2500), st.integers(-6000, -1), st.integers(0, 10**6))
damage = st.one_of(
    st.tuples(st.just("set"), places, st.integers(0, 255)),
    st.tuples(st.just("cut"), places, st.just(0)),
    st.tuples(st.just("drop"), places, st.integers(1, 40)),
    st.tuples(st.just("copy"), places, st.integers(1, 40)),
)


def damaged(data: bytes, blows: list[tuple[str, int, int]]) -> bytes:
    for kind, place, value in blows:
        if not data:
            break
        at = place % len(data)
        if kind == "set":
            data = data[:at] + bytes([value]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "drop":
            data = data[:at] + data[at + value :]
        else:
            data = data[: at + value] + data[at:]
    return data


@given(blows=st.lists(damage, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_a_model_or_an_error(
    sound: tuple[Path, Path, bytes], blows: list[tuple[str, int, int]]
) -> None:
    model, file, data = sound
    # A new file each time: an older one may still be mapped, and a mapped file must not shrink.
    file.unlink()
    file.write_bytes(damaged(data, blows))
    message = "a model"
    try:
        checkpoint = load_checkpoint(model)
        for name in checkpoint.tensors:
            assert checkpoint.tensors[name].shape == checkpoint.config.shapes()[name]
    except UserError as error:
        message = str(error)
    assert message
    assert "\n" not in message
