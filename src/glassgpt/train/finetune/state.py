"""The files kept next to a tuned model until its run is finished: an interrupted run resumes exactly.

.OUT.tuning/tuning.json     the settings, some of them chosen by the clock, and how much time is left
.OUT.tuning/...             a run folder as `train` keeps it: checkpoints and the log of all evaluations
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import read_json, remove

STATE = "tuning.json"
KEYS = {"identity": dict, "config": dict, "settings": dict, "plan": dict, "seconds_total": float,
        "seconds_left": float, "loss_before": float}  # fmt: skip


def state_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.tuning")


def is_interrupted(out: Path) -> bool:
    """Whether there is a run to resume; one that saved nothing may as well start over."""
    folder = state_folder(out)
    saved = any((folder / "checkpoints").glob("step-*/DONE"))
    return (folder / STATE).is_file() and (saved or out.exists())


def read_state(out: Path) -> dict[str, Any]:
    file = state_folder(out) / STATE
    if not file.is_file():
        raise SettingError(f"there is no interrupted run of {out} to resume. Leave out --resume.")
    state = read_json(file)
    for name, kind in KEYS.items():
        if not isinstance(state.get(name), kind):
            raise damaged_error(out)
    return state


def damaged_error(out: Path) -> FileFormatError:
    folder = state_folder(out)
    return FileFormatError(f"{folder / STATE} is damaged. Remove {folder} and {out} to start over.")


def check_unchanged(out: Path, saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse to resume a run with anything else than it started with."""
    differing = [name for name, value in present.items() if saved.get(name) != value]
    if differing:
        raise SettingError(
            f"the run of {out} started with another {', '.join(differing)}. Use what it started with, or "
            "start a new run with another --out."
        )


def clear_folder(folder: Path) -> None:
    """Remove the files of an earlier run, but not the lock."""
    for entry in folder.iterdir():
        if entry.name != "lock":
            remove(entry)


def remove_state(folder: Path) -> None:
    """The run is finished. Its state file goes first: a kill in between leaves nothing to resume."""
    (folder / STATE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
