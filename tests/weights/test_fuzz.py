"""Damaged files: whatever happens to the bytes, the answer is a model or one line, never a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassgpt.errors import UserError
from glassgpt.tokenizer import Tokenizer
from glassgpt.weights import load_checkpoint, save_checkpoint
from tests.weights.conftest import random_checkpoint, write_shards

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
slots = st.one_of(st.integers(0, 2500), st.integers(-6000, -1), st.integers(0, 10**6))
damage = st.one_of(
    st.tuples(st.just("set"), slots, st.integers(0, 255)),
    st.tuples(st.just("cut"), slots, st.just(0)),
    st.tuples(st.just("drop"), slots, st.integers(1, 40)),
    st.tuples(st.just("copy"), slots, st.integers(1, 40)),
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A model in shards with a tokenizer, and the contents of its JSON files."""
    root = tmp_path_factory.mktemp("json")
    (root / "words.txt").write_text(" ".join(f"word{i}" for i in range(100)))
    checkpoint = random_checkpoint(vocab_size=270, n_positions=4, n_embd=8, n_layer=1, n_head=2)
    checkpoint.tokenizer = Tokenizer.train([root / "words.txt"], vocab_size=270)
    write_shards(checkpoint, root / "m")
    for name in ("vocab.json", "merges.txt"):
        (root / "m" / name).unlink()
    names = ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json")
    return root / "m", {name: json.loads((root / "m" / name).read_text()) for name in names}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


ODD: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**64, 10**400, 1.5, float("nan"), float("inf"), "", "x", "gpt2"),
    *("\ud800", "\0", "a" * 5000, [], [1], [[1]], [None], ["x"], {}, {"a": 1}, nested(900)),
]
SPOILT: list[Any] = [
    lambda text: b"",
    lambda text: b"\xef\xbb\xbf" + text.encode(),
    lambda text: text.encode("utf-16"),
    lambda text: text.encode()[: len(text) // 2],
    lambda text: b"[" * 100_000,
    lambda text: b'{"a":' * 900 + text.encode(),
    lambda text: b"9" * 5000,
    lambda text: text.replace("{", '{"n_layer": "x", "n_layer": 3, ', 1).encode(),
    lambda text: text.encode() * 2,
]


def keys_of(value: Any) -> list[Any]:
    return (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )


@given(choice=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_json_file_is_a_model_or_an_error(
    folder: tuple[Path, dict[str, Any]], choice: st.DataObject
) -> None:
    model, contents = folder
    name = choice.draw(st.sampled_from(list(contents)))
    text = json.dumps(contents[name])
    if choice.draw(st.integers(0, 4)) == 0:
        changed = choice.draw(st.sampled_from(SPOILT))(text)
    else:
        value: Any = {"root": json.loads(text)}
        place, key = value, "root"
        while (keys := keys_of(place[key])) and choice.draw(st.integers(0, 3)):
            place, key = place[key], choice.draw(st.sampled_from(keys))
        place[key] = choice.draw(st.sampled_from(ODD))
        changed = json.dumps(value["root"]).encode()
    (model / name).write_bytes(changed)
    try:
        checkpoint = load_checkpoint(model)
        messages = checkpoint.remarks
        for tensor in checkpoint.tensors:
            assert checkpoint.tensors[tensor].shape == checkpoint.config.shapes()[tensor]
    except UserError as error:
        messages = [str(error)]
    finally:
        (model / name).write_text(text)
    for message in messages:
        assert "\n" not in message
        assert len(message) < 1000
