"""The folder of a run: the latest model, ready to use, and checkpoints to resume from exactly.

    RUN/config.json, model.safetensors            the model at the last save
    RUN/log.jsonl                                 a record per step: see `log.py`
    RUN/checkpoints/step-00000400/                see `weights/run_checkpoint.py`; `save.py` and `load.py`

Everything is written under a temporary name and renamed: a kill at any moment leaves the last complete save.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import safetensors

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, UserError
from glassgpt.files import find_interrupted_writes, remove
from glassgpt.weights.run_checkpoint import DONE, REST, STATE, is_sharded

LOG = "log.jsonl"
CHECKPOINT = re.compile(r"step-(\d{8,})")


def list_checkpoints(out: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    folders = (folder for folder in (out / "checkpoints").glob("step-*") if CHECKPOINT.fullmatch(folder.name))
    return sorted((folder for folder in folders if (folder / DONE).exists()), key=checkpoint_step)


def checkpoint_step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def checkpoint_path(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step-{step:08d}"


def prune_checkpoints(out: Path, step: int, best: int | None, keep: int) -> None:
    """Of the checkpoints up to this step, keep the newest ones and the best."""
    # A later one was damaged when this run resumed from an earlier one: it does not count.
    upto = [folder for folder in list_checkpoints(out) if folder <= checkpoint_path(out, step)]
    for old in upto[:-keep]:
        if best is None or old != checkpoint_path(out, best):
            (old / DONE).unlink()  # first: a kill in between leaves nothing that looks complete
            shutil.rmtree(old)


def clean_up(out: Path) -> None:
    """Remove half-written files after a kill. Only in a folder that no process is writing to.

    A folder that is replaced is first moved aside. If the kill fell between that and the move of the new one,
    the name is free: the new one takes it, or else the old one.
    """
    inside = out / "checkpoints"
    interrupted = find_interrupted_writes(inside)
    moved_aside = {name for name, path in interrupted if path.suffix == ".old"}
    for suffix in (".part", ".old"):
        for name, path in interrupted:
            is_free = name in moved_aside and not (inside / name).exists()
            if is_free and path.suffix == suffix and (path / DONE).exists():
                path.rename(inside / name)
    for folder in (out, inside):
        for _, path in find_interrupted_writes(folder):
            remove(path)
    for folder in inside.glob("step-*"):
        if CHECKPOINT.fullmatch(folder.name) and not (folder / DONE).exists():
            remove(folder)


def read_run_config(out: Path) -> Config:
    """The config of the run, which must be that of its newest checkpoint: with another number of heads, say,
    the same weights would be another model."""
    config = Config.load(out)
    expected = json.dumps(config.to_dict())
    for folder in reversed(list_checkpoints(out)):
        path = folder / (REST if is_sharded(folder) else STATE)
        if not path.is_file():  # reading a named pipe would never return
            continue
        try:
            with safetensors.safe_open(path, "pt") as file:
                metadata = file.metadata()
        except (OSError, safetensors.SafetensorError):
            continue  # `load_run_checkpoint` reports it
        if metadata is not None and metadata.get("config", expected) != expected:
            raise config_mismatch(out)
        break
    return config


def config_mismatch(out: Path) -> FileFormatError:
    return FileFormatError(
        f"{out / 'config.json'} does not match the run's checkpoints. Restore it, or start a new run."
    )


def suggest_recovery(out: Path) -> str:
    """The next step for a run that cannot continue."""
    if list_checkpoints(out):
        return "Use --resume to continue from the last checkpoint."
    return "Nothing was saved before: start a new run with a lower --lr."


@contextlib.contextmanager
def watch_folder(out: Path) -> Iterator[Callable[[], None]]:
    """Yields a check that `out` is still the same folder. If it was removed, the next save would create it
    again, without its tokenizer and settings."""
    try:
        handle = os.open(out, os.O_RDONLY)  # while it is open, no other folder gets its inode
    except OSError:  # Windows cannot open folders, and does not remove one that is in use
        yield lambda: None
        return

    def check() -> None:
        try:
            same = os.path.samestat(os.stat(out), os.fstat(handle))
        except OSError:
            same = False
        if not same:
            raise UserError(f"{out} was removed or replaced during the run. Start a new run.")

    try:
        yield check
    finally:
        os.close(handle)
