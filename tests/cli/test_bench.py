"""`glassgpt bench`: what is measured, and that it is a speed. No time is compared with another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import glassgpt as package
from glassgpt.backends.native import is_available
from glassgpt.evaluate import speed
from tests.cli.conftest import Result
from tests.conftest import SHIPPED


def test_bench_measures_three_speeds(
    glassgpt: Callable[..., Result], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "NEW_TOKENS", 3)
    found = json.loads(glassgpt("bench", tiny, "--json").out)
    names = [each["name"] for each in found["speeds"]]
    assert names == ["one text", "16 texts at once", "reading a prompt of 31 tokens"]
    for each in found["speeds"]:
        assert each["spread"][0] <= each["tokens_per_s"] <= each["spread"][1]
    assert found["tokens_per_s"] == found["speeds"][0]["tokens_per_s"] > 0
    assert [each["limit"] is not None for each in found["speeds"]] == [True, False, False]


@pytest.mark.slow
@pytest.mark.skipif(not is_available(), reason="the native engine was not built")
def test_bench_knows_the_limits_of_the_native_engine(
    glassgpt: Callable[..., Result], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "NEW_TOKENS", 3)
    found = json.loads(glassgpt("bench", tiny, "--dtype", "int8", "--json").out)
    assert found["backend"] == "native"
    assert [each["limited_by"] in ("memory", "int8 arithmetic") for each in found["speeds"]] == [True] * 3
    assert all(each["limit"] > 0 for each in found["speeds"])


def test_every_way_makes_the_tokens_it_counts(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr(speed, "NEW_TOKENS", 3)
    gpt = package.load(tiny)
    load = speed.Workload.of(gpt)
    made = {name: run() for name, run in speed._ways(gpt, load).items()}
    assert list(made.values()) == [3, 3 * speed.BATCH_SIZE, gpt.backend.context - 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "module", "measured"),
    [("transformers", "transformers", (0, 1, 2)), ("llama.cpp", "llama_cpp", (0, 2))],
)
def test_peers_run_the_same_workload(
    monkeypatch: pytest.MonkeyPatch, peer: str, module: str, measured: tuple[int, ...]
) -> None:
    pytest.importorskip(module)
    monkeypatch.setattr(speed, "NEW_TOKENS", 3)
    monkeypatch.setattr(speed, "ROUNDS", 1)
    found = speed.measure_speed(package.load(SHIPPED, device="cpu"), peers=[peer])
    assert [each.name for each in found[3:]] == [f"{peer}: {found[i].name}" for i in measured]
    assert all(each.tokens_per_s > 0 for each in found)


def test_a_peer_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, glassgpt: Callable[..., Result]
) -> None:
    monkeypatch.setattr("glassgpt.evaluate.speed_peers.find_spec", lambda name: None)
    done = glassgpt("bench", SHIPPED, "--llama-cpp")
    assert done.is_one_line_error("comparing with llama.cpp needs it: pip install llama-cpp-python")
