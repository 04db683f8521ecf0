"""A model of one's own on the page: every format gives the server's numbers, a damaged file is one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import glassgpt
from glassgpt.explorer.app import make_app
from glassgpt.weights import convert
from tests.conftest import SHIPPED
from tests.explorer.conftest import API, Client
from tests.explorer.test_site_numbers import TEXT, Comparison, Engine, engine_of, plain

FORMATS = {
    "packed": ("own", "packed", "int8"),
    "int4": ("own", "packed", "int4"),
    "float32": ("own", "hf", "float32"),
    "float16": ("own", "hf", "float16"),
    "bfloat16": ("own", "hf", "bfloat16"),
    "gguf-f16": ("own.gguf", "gguf", "float16"),
    "gguf-q8_0": ("own.gguf", "gguf", "q8_0"),
    "gguf-q4_0": ("own.gguf", "gguf", "q4_0"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of(glassgpt.weights.registry.DATA / SHIPPED) as found:
        yield found


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_of_ones_own(engine: Engine, tmp_path: Path, name: str) -> None:
    target, format, dtype = FORMATS[name]
    path = tmp_path / target
    convert(SHIPPED, path, format, dtype)
    status, opened = engine.ask(open=str(path))
    assert status == 200, opened
    server = Client(make_app(glassgpt.load(path, device="cpu")))
    body = {"model": opened["number"], "text": TEXT}
    found, wanted = engine.get(f"/trace {json.dumps(body)}"), server.trace()
    found["model"] = 0
    comparison = Comparison()
    comparison.compare(found, wanted, name)
    for key in ("next?position=8", "head?layer=1&head=2&position=5", "mlp?layer=4&position=3"):
        expected = plain(server._checked(server.http.get(f"{API}/trace/{wanted['id']}/{key}"), 200))
        comparison.compare(engine.get(f"/trace/{found['id']}/{key}"), expected, f"{name} {key}")
    assert comparison.numbers > 18_000


def mutations(source: Path, count: int) -> Iterator[bytes]:
    """Files with some bytes of the head changed, cut off, or with other numbers in their header."""
    random = np.random.default_rng(11)
    whole = source.read_bytes()
    for i in range(count):
        data = bytearray(whole)
        kind = i % 4
        if kind == 0:
            data = data[: int(random.integers(0, len(data)))]
        elif kind == 1:
            for at in random.integers(0, min(len(data), 7000), 8):
                data[int(at)] = int(random.integers(0, 256))
        elif kind == 2:
            data[int(random.integers(0, 24))] ^= 1 << int(random.integers(0, 8))
        else:
            data += bytes(int(random.integers(1, 99)))
        yield bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["packed", "gguf"])
def test_damaged_files_are_refused_in_one_line(engine: Engine, tmp_path: Path, format: str) -> None:
    if format == "gguf":
        source = tmp_path / "own.gguf"
        convert(SHIPPED, source, "gguf", "q8_0")
        target = tmp_path / "bad.gguf"
    else:
        source = glassgpt.weights.registry.DATA / SHIPPED / "model.int8.safetensors"
        target = tmp_path / "bad" / "model.safetensors"
        target.parent.mkdir()
        shutil.copy(source.parent / "config.json", target.parent)
    refused = 0
    for data in mutations(source, 100):
        target.write_bytes(data)
        status, answer = engine.ask(open=str(target if format == "gguf" else target.parent))
        if status == 200:  # a number of a weight, or padding at the end of a GGUF file
            continue
        refused += 1
        message = answer["error"]["message"]
        assert 400 <= status < 500, message
        assert "\n" not in message
        assert len(message) < 400
    assert refused > 60
    assert engine.get(f"/trace {json.dumps({'text': TEXT})}")["tokens"]  # it goes on


def test_what_was_dropped_is_named(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    status, answer = engine.ask(open=str(tmp_path))
    assert (status, answer["error"]["message"][:34]) == (400, "No weights among notes.txt. Drop a")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 40)
    _, answer = engine.ask(open=str(tmp_path))
    assert (
        "model.safetensors is not a valid safetensors file: its header claims" in answer["error"]["message"]
    )
