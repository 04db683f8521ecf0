"""The native engine's pool of threads alone, with more threads than cores: helpers are late all the time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import glassgpt.backends.native

CPP = Path(glassgpt.backends.native.__file__).parent / "cpp"
CHECK = Path(__file__).with_name("threads_check.cpp")
PATIENCE = 300


@pytest.mark.slow
def test_late_helpers_take_no_piece_of_another_phase(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "check"
    sources = [str(CHECK), str(CPP / "threads.cpp")]
    subprocess.run(
        [compiler, "-O2", "-std=c++17", "-pthread", f"-I{CPP}", *sources, "-o", str(program)], check=True
    )
    for n_threads in (2, 5):
        found = subprocess.run([program, str(n_threads)], capture_output=True, text=True, timeout=PATIENCE)
        assert (found.returncode, found.stdout) == (0, "")
