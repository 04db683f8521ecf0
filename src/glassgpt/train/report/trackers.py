"""Trackers of a run: its samples file, TensorBoard, wandb and trackio.

A tracker logs each record of the loop; a record with a `sample` has a generated text. The loop itself writes
`log.jsonl`, which a run depends on. Nothing depends on a tracker: if one fails, a warning is shown once and
the run continues.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from glassgpt.errors import SettingError
from glassgpt.train.checkpoint.log import StepRecord
from glassgpt.train.loop import truncate_log

TRACKERS = ("wandb", "trackio")  # packages with the same interface
SAMPLES = "samples.jsonl"


class Tracker(Protocol):
    def log(self, record: StepRecord) -> None: ...

    def close(self) -> None: ...


def check_trackers(tensorboard: bool, trackers: Iterable[str]) -> None:
    """Refuse a tracker whose package is missing, before anything is computed."""
    commands = {"tensorboard": 'pip install "glassgpt[tensorboard]"'} if tensorboard else {}
    for name in trackers:
        if name not in TRACKERS:
            raise SettingError(f"--tracker {name!r} is not one of {', '.join(TRACKERS)}.")
        commands[name] = f"pip install {name}"
    for name, command in commands.items():
        if importlib.util.find_spec(name) is None:
            raise SettingError(f"{name} is not installed. Type: {command}")


@contextmanager
def open_trackers(
    out: Path,
    config: Mapping[str, Any],
    first: int,
    tensorboard: bool,
    trackers: Iterable[str],
    warn: Callable[[str], None],
) -> Iterator[Callable[[StepRecord], None]]:
    """Yields a function that logs a record to all trackers of the run in `out`, from step `first` on."""
    makers: dict[str, Callable[[], Tracker]] = {SAMPLES: lambda: SamplesFile(out, first)}
    if tensorboard:
        makers["tensorboard"] = lambda: TensorBoard(out, first)
    for name in trackers:
        makers[name] = lambda name=name: WandbTracker(name, out, config)  # type: ignore[misc]
    opened: dict[str, Tracker] = {}
    failed: set[str] = set()

    def attempt(name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # whatever a third-party package does, the run continues
            if name not in failed:
                warn(f"{name}: {type(error).__name__}: {error}. The run continues without it.")
            failed.add(name)

    def log(record: StepRecord) -> None:
        for name, tracker in opened.items():
            attempt(name, lambda: tracker.log(record))  # noqa: B023 (called immediately)

    for name, make in makers.items():
        attempt(name, lambda: opened.update({name: make()}))  # noqa: B023 (called immediately)
    try:
        yield log
    finally:
        for name, tracker in opened.items():
            attempt(name, tracker.close)


class SamplesFile:
    """`samples.jsonl`: the generated samples, for the report."""

    def __init__(self, out: Path, first: int) -> None:
        self.file = out / SAMPLES
        truncate_log(self.file, first)

    def log(self, record: StepRecord) -> None:
        if "sample" in record:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": record["step"], "text": record["sample"]}) + "\n")

    def close(self) -> None:
        pass


class TensorBoard:
    """Event files in RUN/tensorboard. `tensorboard --logdir RUN` shows them."""

    def __init__(self, out: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that are repeated after a resume are dropped.
        purge = None if first == 0 else first + 1
        self.writer = SummaryWriter(str(out / "tensorboard"), purge_step=purge)

    def log(self, record: StepRecord) -> None:
        step = record["step"]
        for name, value in get_scalars(record).items():
            self.writer.add_scalar(name, value, step)
        if "sample" in record:
            indented = "\n".join("    " + line for line in str(record["sample"]).splitlines())
            self.writer.add_text("sample", indented, step)

    def close(self) -> None:
        self.writer.close()


class WandbTracker:
    """wandb, or trackio, which has the same interface."""

    def __init__(self, name: str, out: Path, config: Mapping[str, Any]) -> None:
        self.package = importlib.import_module(name)
        id_file = out / "tracker-id"  # with which a resumed run continues the same run there
        if not id_file.exists():
            id_file.write_text(f"{out.resolve().name}-{secrets.token_hex(3)}\n", "utf-8")
        id = id_file.read_text("utf-8").strip()
        options = {"id": id, "dir": str(out)} if name == "wandb" else {}
        self.package.init(project="glassgpt", name=id, config=dict(config), resume="allow", **options)

    def log(self, record: StepRecord) -> None:
        self.package.log(get_scalars(record), step=record["step"])

    def close(self) -> None:
        self.package.finish()


def get_scalars(record: StepRecord) -> dict[str, float]:
    """The numeric values of a record."""
    return {
        name: float(value)
        for name, value in record.items()
        if name != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    }
