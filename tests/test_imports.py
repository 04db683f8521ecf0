"""What importing the package costs: the rooms that run without torch do not import it. The order of the rooms
is import-linter's (`make style`, pyproject.toml)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
TORCH_ROOMS = ("model", "backends.torch", "train", "evaluate", "tasks")
# What of these runs without torch all the same, and what of the other rooms cannot.
LIGHT = ("model", "model.variants", "model.numpy_gpt2", "backends.torch", "backends.torch.openmp")
TORCH_MODULES = (
    "inspect.divergence",
    "inspect.experiments.activation_gradients",
    "inspect.torch_forward",
    "inspect.attribution.gradients",
    "verify.layer_modes",
)
SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("ray", "mcp"):  # of an extra that the tests do not need
            raise
    if "torch" in sys.modules:
        sys.exit(f"import {name} imports torch: import it inside the function that needs it")
"""


def modules() -> list[str]:
    """Every module of the package but those that may import torch, and the program itself."""
    names = []
    for path in sorted((SOURCE / "glassgpt").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[1:]).removesuffix("__init__").removesuffix(".")
        in_torch_room = f"{name}.".startswith(tuple(f"{room}." for room in TORCH_ROOMS)) and name not in LIGHT
        if not in_torch_room and name not in (*TORCH_MODULES, "__main__"):
            names.append(f"glassgpt.{name}".removesuffix("."))
    return names


def test_only_rooms_that_compute_with_torch_import_it() -> None:
    names = modules()
    assert {
        "glassgpt",
        "glassgpt.gpt",
        "glassgpt.cli.commands.train",
        "glassgpt.cli.commands.explore",
        "glassgpt.serve.app",
        "glassgpt.explorer.app",
        "glassgpt.inspect.traces.trace",
        "glassgpt.backends.numpy",
    } <= set(names)
    subprocess.run([sys.executable, "-c", SCRIPT, *names], check=True, timeout=600)


def test_the_program_handles_ctrl_c_before_it_imports_much() -> None:
    """`python -m glassgpt` imports the package before `__main__` can set a handler."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import glassgpt; print('typing' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-S", "-c", script, str(SOURCE)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
