"""Some hostile inputs of each kind: a result or one line, never a traceback, a hang or a changed file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fuzz import sandbox
from tests.fuzz.__main__ import attack
from tests.fuzz.cases import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs forks and /proc")]
CASES = {
    "command lines": 60,
    "model folders": 40,
    "packed models": 40,
    "run folders": 25,
    "text files": 25,
    "prepared data": 25,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "template"
    sandbox.make(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_no_faults(kind: str, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HF_ENDPOINT", "http://127.0.0.1:9"), ("OMP_NUM_THREADS", "1"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):  # `attack` sets them
        monkeypatch.setenv(name, str(tmp_path))
    for seed in range(CASES.get(kind, 3)):
        fault, what, output, _ = attack(kind, seed, template, tmp_path)
        assert fault is None, f"{fault}: {what}\n{output}"
