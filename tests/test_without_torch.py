"""The light package: the README's tour up to the Explorer where torch is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOUR = Path(__file__).resolve().parent / "tour_without_torch.py"


def take_tour(python: Path | str, *options: str | Path, **environment: str) -> None:
    command = [str(python), "-P", str(TOUR), *map(str, options)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all of the tour works without torch" in done.stdout


def test_the_tour_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    take_tour(sys.executable, "--block", tmp_path, PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1")


@pytest.mark.slow
def test_the_explorer_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    options = ("--block", "--explore", tmp_path)
    take_tour(sys.executable, *options, PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1")


@pytest.mark.slow
def test_the_tour_in_an_environment_without_torch(tmp_path: Path) -> None:
    """What `make run` installs, in a new virtual environment."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=600)
    python = venv / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "0"]
    install += ["-c", ROOT / "constraints.txt", f"{ROOT}[serve]"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode and ("No matching distribution" in done.stderr or "onnection" in done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1][:200]}")
    assert done.returncode == 0, done.stderr
    environment = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    assert subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode
    take_tour(python, "--explore", tmp_path, **environment)
