"""What OpenMP is told is told before torch is loaded, and what the user has said stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from glassgpt.openmp import SPIN_COUNT

# Ends the process where torch would be loaded, and says what torch would have found in the environment.
AT_TORCH = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            found = os.popen("echo $GOMP_SPINCOUNT,$OMP_WAIT_POLICY").read().strip()  # as a C library sees it
            os.write(1, f"{found}\\n".encode())
            os._exit(0)
sys.meta_path.insert(0, Watch())
"""
COMMAND = "from glassgpt.cli import main; main(['generate', 'x', '--model', 'tiny', '--max-new-tokens', '1'])"
TRAINING = "from glassgpt.cli import main; main(['tune', 'x.txt', '--model', 'tiny'])"
LOAD = "import glassgpt; glassgpt.load('tiny')"


@pytest.mark.parametrize(
    ("code", "said", "found"),
    [
        (COMMAND, {}, f"{SPIN_COUNT},"),
        (TRAINING, {}, f"{SPIN_COUNT},"),
        (LOAD, {}, f"{SPIN_COUNT},"),
        (COMMAND, {"GOMP_SPINCOUNT": "7"}, "7,"),
        (LOAD, {"OMP_WAIT_POLICY": "active"}, ",active"),
    ],
)
def test_what_torch_finds(code, said, found, tmp_path):
    (tmp_path / "x.txt").write_text("Words. " * 2000)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", AT_TORCH + code],
        env={**clean, **said}, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.splitlines()[:1] == [found], done.stderr
    assert done.returncode == 0


def test_where_torch_is_loaded_already_nothing_is_said(monkeypatch):
    from glassgpt.openmp import shorten_spin_wait

    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys)
    shorten_spin_wait()
    assert "GOMP_SPINCOUNT" not in os.environ
