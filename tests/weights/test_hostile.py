"""A hostile file is refused after few steps, with under 200 MB of extra memory, and runs no code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.weights.hostile import CASES

# Calls and returns, of Python's functions and of C's: the same number on any machine, however busy. The
# largest pickle that is read at all takes 12 million.
MOST_STEPS = 20_000_000

SRC = Path(__file__).resolve().parents[2] / "src"

# Each file is opened in a process of its own, forked from one that has imported everything, torch included:
# steps and memory are then those of the opening alone.
MEASURE = """
import json, os, resource, sys
import torch
from glassgpt.errors import UserError
from glassgpt.weights import load_checkpoint, convert, registry
for name in registry.FORMATS: registry._module(name)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

for path in sys.argv[1:]:
    if os.fork() == 0:
        steps = 0

        def step(frame, event, argument):
            global steps
            steps += 1

        before = peak()
        sys.setprofile(step)
        try:
            checkpoint = load_checkpoint(path)
            message = "opened"
        except UserError as error:
            message = str(error)
        except BaseException as error:
            message = "not a UserError: " + repr(error)
        sys.setprofile(None)
        print(json.dumps([path, message, steps, peak() - before]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int, int]]:
    if not hasattr(os, "fork"):
        pytest.skip("measured by forking, which this system cannot")
    folder = tmp_path_factory.mktemp("hostile")
    paths = {str(maker(folder / name)): name for name, (maker, _) in CASES.items()}
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    settings["PYTHONPATH"] = os.pathsep.join([str(SRC), settings.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths], env=settings, capture_output=True, text=True, check=True
    )
    found = {}
    for line in run.stdout.splitlines():
        path, message, steps, extra = json.loads(line)
        found[paths[path]] = (message, steps, extra)
    assert not (folder / "marker").exists(), "a payload was executed"
    return found


@pytest.mark.parametrize("name", CASES)
def test_refused_in_few_steps_and_little_memory(name: str, results: dict[str, tuple[str, int, int]]) -> None:
    message, steps, extra = results[name]
    assert CASES[name][1] in message
    assert "not a UserError" not in message
    assert "\n" not in message
    assert len(message) < 600
    assert steps < MOST_STEPS
    assert extra < 200e6


def test_a_payload_is_refused_without_torch(tmp_path: Path) -> None:
    """The first wall needs no torch: its import alone takes a second."""
    path = CASES["pickle_in_bin"][0](tmp_path / "model")
    code = (
        "import sys; from glassgpt.errors import FileFormatError\n"
        "from glassgpt.weights import load_checkpoint\n"
        f"try: load_checkpoint({str(path)!r})\n"
        "except FileFormatError: print('torch' in sys.modules)"
    )
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr
    assert not (tmp_path / "marker").exists()


def test_the_payload_is_live_ammunition(tmp_path: Path) -> None:
    """Opened the careless way it does what it was made for; else the tests above would prove nothing."""
    import pickle

    path = CASES["pickle_without_torch"][0](tmp_path / "model")
    pickle.loads(path.read_bytes()).close()
    assert (tmp_path / "marker").exists()
