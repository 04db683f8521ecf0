"""OpenMP's spin count is set before torch is imported, unless the user has set it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from glassgpt.backends.torch.openmp import SPIN_COUNT

# Ends the process where torch would be imported, and prints the environment that torch would see.
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
    ("code", "environment", "found"),
    [
        (COMMAND, {}, f"{SPIN_COUNT},"),
        (TRAINING, {}, f"{SPIN_COUNT},"),
        (LOAD, {}, f"{SPIN_COUNT},"),
        (COMMAND, {"GOMP_SPINCOUNT": "7"}, "7,"),
        (LOAD, {"OMP_WAIT_POLICY": "active"}, ",active"),
    ],
)
def test_spin_count_that_torch_sees(code, environment, found, tmp_path):
    (tmp_path / "x.txt").write_text("Words. " * 2000)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    clean["GLASSGPT_NATIVE"] = str(tmp_path / "none")  # torch computes, as where there is no compiler
    done = subprocess.run(
        [sys.executable, "-c", AT_TORCH + code],
        env={**clean, **environment}, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.splitlines()[:1] == [found], done.stderr
    assert done.returncode == 0


def test_nothing_is_set_after_torch_is_imported(monkeypatch):
    from glassgpt.backends.torch.openmp import shorten_spin_wait

    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys)
    shorten_spin_wait()
    assert "GOMP_SPINCOUNT" not in os.environ
