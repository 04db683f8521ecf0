"""What lies beside a tuned model until its tuning is over, so that a tuning that was cut can go on exactly.

.OUT.tuning/tuning.json     what was picked, partly by the clock, and how much time is left
.OUT.tuning/...             a run as `train` keeps it: checkpoints, the log of all looks
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import read_json, remove

STATE = "tuning.json"
KEYS = {"identity": dict, "config": dict, "settings": dict, "plan": dict, "seconds": float, "left": float,
        "before": float}  # fmt: skip


def state_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.tuning")


def is_interrupted(out: Path) -> bool:
    """Whether there is something to go on from; a tuning that saved nothing may as well begin anew."""
    folder = state_folder(out)
    saved = any((folder / "checkpoints").glob("step-*/DONE"))
    return (folder / STATE).is_file() and (saved or out.exists())


def read_state(out: Path) -> dict[str, Any]:
    file = state_folder(out) / STATE
    if not file.is_file():
        raise SettingError(f"there is no interrupted tuning of {out} to go on with. Leave out --resume.")
    state = read_json(file)
    for name, kind in KEYS.items():
        if not isinstance(state.get(name), kind):
            raise damaged(out)
    return state


def damaged(out: Path) -> FileFormatError:
    folder = state_folder(out)
    return FileFormatError(f"{folder / STATE} is damaged. Remove {folder} and {out} to begin anew.")


def check_same(out: Path, saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """A tuning goes on with what it began with, or not at all."""
    differing = [name for name, value in present.items() if saved.get(name) != value]
    if differing:
        raise SettingError(
            f"the tuning of {out} began with another {', '.join(differing)}. Name what it began with, or "
            "begin anew with another --out."
        )


def empty(folder: Path) -> None:
    """Remove what an earlier tuning left, but not the lock."""
    for entry in folder.iterdir():
        if entry.name != "lock":
            remove(entry)


def clear(folder: Path) -> None:
    """The tuning is over. First goes what makes it one: a kill in between leaves nothing to go on with."""
    (folder / STATE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
