"""Where and when a run was computed: a line in `environment.jsonl` each time it is started or resumed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from glassgpt import __version__

ENVIRONMENT = "environment.jsonl"


def write_environment(out: Path, first: int, device: torch.device, world_size: int, **extra: Any) -> None:
    """Record that the run continues after `first` steps, here and now."""
    start = {"step": first, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    with (out / ENVIRONMENT).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**start, **collect_environment(device, world_size), **extra}) + "\n")


def collect_environment(device: torch.device, world_size: int = 1) -> dict[str, Any]:
    """The versions and the machine that a run's results may depend on."""
    versions = {"glassgpt": __version__, "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    versions["numpy"] = metadata.version("numpy")
    commit = git_commit()
    return {
        "device": device_name(device),
        "processes": world_size,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        **({} if commit is None else {"commit": commit}),
    }


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    name = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # only Linux has it
        pass
    return f"{name or 'CPU'}, {os.cpu_count()} cores"


def git_commit() -> str | None:
    """The git commit of the working directory, with a + if files differ from it; None if there is none."""
    try:
        command = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
        commit = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return commit or None
