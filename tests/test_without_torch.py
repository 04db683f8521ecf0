"""The light package: the README's tour up to the Explorer where torch is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassgpt.backends.native import is_available

ROOT = Path(__file__).resolve().parents[1]
TOUR = Path(__file__).resolve().parent / "tour_without_torch.py"


def take_tour(python: Path | str, *options: str | Path, **environment: str) -> None:
    command = [str(python), "-P", str(TOUR), *map(str, options)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all of the tour works without torch" in done.stdout


SCRIPT = """
import sys
from glassgpt.cli import main
for words in (["generate", "Once"], ["next", "Once", "--json"], ["tokens", "Once"], ["info", "tiny"]):
    assert main([*words, *([] if "info" in words else ["--model", "tiny"])]) == 0
    late = {"torch", "huggingface_hub", "array_api_compat", "fastapi"} & set(sys.modules)
    assert not late, f"{words[0]} imports {late}"
"""


@pytest.mark.skipif(not is_available(), reason="the native engine was not built here")
def test_short_commands_import_nothing_that_takes_long() -> None:
    """Although it is installed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_tour_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    options = ("--block", "--explore", tmp_path)
    take_tour(sys.executable, *options, PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1")


@pytest.mark.slow
def test_the_tour_in_an_environment_without_torch(tmp_path: Path) -> None:
    """What `make run` installs, in a new virtual environment."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=1800)
    python = venv / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "0"]
    install += ["-c", ROOT / "constraints.txt", f"{ROOT}[serve]"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=1800, check=False)
    unreachable = ("No matching distribution", "onnection", "HTTP error", "timed out")
    if done.returncode and any(words in done.stderr for words in unreachable):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1][:200]}")
    assert done.returncode == 0, done.stderr
    environment = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    assert subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode
    take_tour(python, "--explore", tmp_path, **environment)


MISSING = """
import sys
from glassgpt.cli import main
assert [main(words.split()) for words in sys.argv[1:]] == [2] * (len(sys.argv) - 1)
assert "torch" not in sys.modules
"""


def test_what_is_missing_is_found_before_torch_is_imported(tmp_path: Path) -> None:
    """Its import takes seconds."""
    (tmp_path / "a.txt").write_text("some text")
    commands = (
        "tune nosuch.txt", "tune a.txt --model nosuch", "tune a.txt --task nosuch", "tune a.txt --out a.txt",
        "tune nosuch.jsonl --task en-fr", "tune a.txt --resume", "train --data nosuch --out run --steps 3",
        "train --data a.txt --out run --steps 3", "train --out run --steps 3", "train --out run --resume",
        "train --data a.txt --out a.txt --steps 3", "prepare nosuch.txt -o x", "convert nosuch x",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", MISSING, *commands], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(commands)
