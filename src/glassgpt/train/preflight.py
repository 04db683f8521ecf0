"""Checks that need no torch, which takes seconds to import: files that do not exist, folders that would be
replaced, a run that cannot be resumed. `train` and `tune` begin with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.files import (
    check_not_device,
    check_target,
    expand_user,
    find_interrupted_writes,
    recover_interrupted_write,
    resolve_symlink,
)
from glassgpt.ranges import TRAINING_SEEDS, check_number, check_whole
from glassgpt.tasks.definition import Task, load_task
from glassgpt.train.checkpoint.run_folder import list_checkpoints
from glassgpt.train.data.find_files import WHOLE, Reading, find_sources
from glassgpt.train.data.shards import open_splits
from glassgpt.train.finetune.state import is_interrupted, read_state
from glassgpt.train.settings import read_settings
from glassgpt.weights import load_config
from glassgpt.weights.registry import check_only_model_files

MINUTES, MAX_MINUTES = 10.0, 60 * 24 * 366  # of `tune`: the default, and a year


# For `train`.


def check_train_inputs(data: str | None, out: Path, resume: bool) -> None:
    """Check that the folder of the run may be written and that the data can be opened."""
    refuse_foreign_folder(out)
    open_splits(find_data(data, out, check_resume(out, resume)))


def find_data(data: str | None, out: Path, resumed: bool) -> str:
    """The given data, or that of the run that is resumed."""
    if data is None and resumed:
        data = read_settings(out)[1].get("data")
    if data is None:
        where = f" {out} does not record it." if resumed else ""
        raise SettingError(f"--data is missing.{where} Name a folder written by prepare, or a .bin file.")
    return data


def check_resume(out: Path, resume: bool) -> bool:
    """Whether a run in `out` is resumed; an error if `resume` says otherwise."""
    started = bool(list_checkpoints(out))
    # torchrun repeats the command when it restarts the processes after one has died. On several machines not
    # all of them see the count: there --resume is given from the start.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if started and not resume and not restarted:
        raise SettingError(
            f"{out} already contains a run. Add --resume to continue it, or choose another --out."
        )
    if resume and not started and "TORCHELASTIC_RUN_ID" not in os.environ:
        raise SettingError(f"{out} has no checkpoint to resume from. Leave out --resume to start a run.")
    return started


def refuse_foreign_folder(out: Path) -> None:
    """Refuse a folder of other files: a run is written to a new folder, an empty one, or that of a run."""
    check_not_device(out)
    if out.is_file():
        raise SettingError(f"--out {out} is a file. Name a folder.")
    ours = {"settings.json", "checkpoints", *(path.name for _, path in find_interrupted_writes(out))}
    present = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    foreign = sorted(name for name in present if not name.startswith("."))  # .DS_Store and the like
    if foreign and not ours & present:
        raise SettingError(
            f"--out {out} contains {foreign[0]!r}, which is not part of a run. Name another folder."
        )


# For `tune`.


@dataclass(frozen=True)
class TuneInputs:
    """The arguments of `tune`, checked."""

    files: list[str | Path]
    target: Path
    task: Task | None
    seconds: float  # the time limit
    saved: dict[str, Any] | None  # the state of the run that is resumed
    reading: Reading


def check_tune_inputs(
    files: str | Path | Iterable[str | Path],
    *,
    model: str = "default",
    out: str | Path | None = None,
    task: str | Path | Task | None = None,
    lora: bool = False,
    adapter: bool = False,
    format: str | None = None,
    lines: bool = False,
    column: str | None = None,
    minutes: float | None = None,
    seed: int = 0,
    resume: bool = False,
    force: bool = False,
) -> TuneInputs:
    inputs = [files] if isinstance(files, str | Path) else list(files)
    if not inputs:
        raise SettingError("no files to read. Name files or folders of text.")
    if minutes is not None:
        check_number("--minutes", minutes, 0, MAX_MINUTES, "10 is usual", above=True)
    check_whole("--seed", seed, 0, TRAINING_SEEDS)
    if resume and force:
        raise SettingError("--resume continues the existing run and --force replaces it: use one of them.")
    target = choose_output(inputs, out, model, resume, force)
    saved = read_state(target) if resume else None
    definition = task if task is None or isinstance(task, Task) else load_task(task)
    check_adapter(adapter, lora, definition, format)
    reading = Reading(lines, column)
    if definition is None:
        find_sources(inputs, reading=reading)
    elif reading != WHOLE:
        raise SettingError("--lines and --column are for texts; --task reads its own fields. Leave them out.")
    else:
        check_exist(inputs)
    check_attention(load_config(model), model)
    seconds = 60.0 * (MINUTES if minutes is None else minutes)
    if saved is not None and minutes is None:
        seconds = saved["seconds_total"]
    return TuneInputs(inputs, target, definition, seconds, saved, reading)


def check_exist(files: Sequence[str | Path]) -> None:
    for file in files:
        if not expand_user(file).exists():
            raise SettingError(f"{file} does not exist. Name a .jsonl, .tsv or .csv file of records.")


def check_attention(config: Config, model: str) -> None:
    if config.attention != Config.attention:
        raise SettingError(
            f"tune writes a model for transformers, which has no attention {config.attention!r}. "
            f"Train on instead: glassgpt train --init-from {model}"
        )


def check_adapter(adapter: bool, lora: bool, task: Task | None, format: str | None = None) -> None:
    if format not in (None, "glassgpt", "peft"):
        raise SettingError(f"--format {format!r} is not glassgpt or peft. Leave it out for a whole model.")
    if format is not None and not adapter:
        raise SettingError("--format is that of an adapter's folder. Add --lora --adapter.")
    if adapter and not lora:
        raise SettingError("--adapter writes the low-rank changes that --lora makes. Add --lora.")
    if adapter and task is not None and task.has_head:
        raise SettingError(f"an adapter has no place for the head of {task.name}. Leave out --adapter.")


def choose_output(
    files: Iterable[str | Path],
    out: str | Path | None,
    model: str = "default",
    resume: bool = False,
    force: bool = False,
) -> Path:
    """Where the tuned model goes: a new folder, that of the run to resume, or with `force` over a model."""
    files = list(files)
    name = Path(os.path.realpath(expand_user(files[0]))).name.split(".")[0]
    if not name or any(sign in name for sign in "*?["):
        name = "text"
    target = resolve_symlink(Path(f"{name}-tuned") if out is None else expand_user(out))
    check_target(target, [Path(file) for file in (*files, model) if Path(file).exists()])
    recover_interrupted_write(target)
    if resume:
        return target
    if is_interrupted(target) and not force:
        raise SettingError(
            f"{target} belongs to an interrupted run. Add --resume to continue it, choose another folder "
            "with --out, or add --force to start over."
        )
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        if not force:
            raise SettingError(
                f"{target} already exists. Choose another folder with --out, or add --force to replace it."
            )
        check_only_model_files(target)
    return target
