"""Who hears of a run while it goes: its samples file, TensorBoard, and trackers such as wandb and trackio.

A listener is called with each record of the loop; one with a `sample` carries a text of the model. The loop
itself writes `log.jsonl`, on which a run depends. Nothing depends on a listener: one that fails is
complained about once and the run goes on.
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
from glassgpt.train.loop import truncate_log

Record = Mapping[str, Any]
TRACKERS = ("wandb", "trackio")  # two packages with one interface
SAMPLES = "samples.jsonl"


class Listener(Protocol):
    def hear(self, record: Record) -> None: ...

    def close(self) -> None: ...


def check_listeners(tensorboard: bool, trackers: Iterable[str]) -> None:
    """A package that is missing is noticed before anything is computed."""
    wanted = {"tensorboard": 'pip install "glassgpt[tensorboard]"'} if tensorboard else {}
    for name in trackers:
        if name not in TRACKERS:
            raise SettingError(f"--tracker {name!r} is not one of {', '.join(TRACKERS)}.")
        wanted[name] = f"pip install {name}"
    for name, command in wanted.items():
        if importlib.util.find_spec(name) is None:
            raise SettingError(f"{name} is not installed. Type: {command}")


@contextmanager
def listening(
    out: Path,
    facts: Mapping[str, Any],
    first: int,
    tensorboard: bool,
    trackers: Iterable[str],
    complain: Callable[[str], None],
) -> Iterator[Callable[[Record], None]]:
    """Yields the function that tells a record to all who listen to the run in `out` from step `first` on."""
    makers: dict[str, Callable[[], Listener]] = {SAMPLES: lambda: Samples(out, first)}
    if tensorboard:
        makers["tensorboard"] = lambda: TensorBoard(out, first)
    for name in trackers:
        makers[name] = lambda name=name: Tracker(name, out, facts)  # type: ignore[misc]
    listeners: dict[str, Listener] = {}
    failed: set[str] = set()

    def attempt(name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # whatever a package of others does, the run goes on
            if name not in failed:
                complain(f"{name}: {type(error).__name__}: {error}. The run goes on without it.")
            failed.add(name)

    def tell(record: Record) -> None:
        for name, listener in listeners.items():
            attempt(name, lambda: listener.hear(record))  # noqa: B023 (called at once)

    for name, make in makers.items():
        attempt(name, lambda: listeners.update({name: make()}))  # noqa: B023 (called at once)
    try:
        yield tell
    finally:
        for name, listener in listeners.items():
            attempt(name, listener.close)


class Samples:
    """`samples.jsonl`: what the model wrote, for the report."""

    def __init__(self, out: Path, first: int) -> None:
        self.file = out / SAMPLES
        truncate_log(self.file, first)

    def hear(self, record: Record) -> None:
        if "sample" in record:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": record["step"], "text": record["sample"]}) + "\n")

    def close(self) -> None:
        pass


class TensorBoard:
    """Event files in RUN/tensorboard. `tensorboard --logdir RUN` shows them."""

    def __init__(self, out: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Curves of steps that are done again are cut off there.
        purge = None if first == 0 else first + 1
        self.writer = SummaryWriter(str(out / "tensorboard"), purge_step=purge)

    def hear(self, record: Record) -> None:
        step = record["step"]
        for name, value in figures(record).items():
            self.writer.add_scalar(name, value, step)
        if "sample" in record:
            indented = "\n".join("    " + line for line in str(record["sample"]).splitlines())
            self.writer.add_text("sample", indented, step)

    def close(self) -> None:
        self.writer.close()


class Tracker:
    """wandb, or trackio, which has the same three functions."""

    def __init__(self, name: str, out: Path, facts: Mapping[str, Any]) -> None:
        self.package = importlib.import_module(name)
        known = out / "tracker-id"  # a run that goes on is the same run there, too
        if not known.exists():
            known.write_text(f"{out.resolve().name}-{secrets.token_hex(3)}\n", "utf-8")
        id = known.read_text("utf-8").strip()
        more = {"id": id, "dir": str(out)} if name == "wandb" else {}
        self.package.init(project="glassgpt", name=id, config=dict(facts), resume="allow", **more)

    def hear(self, record: Record) -> None:
        self.package.log(figures(record), step=record["step"])

    def close(self) -> None:
        self.package.finish()


def figures(record: Record) -> dict[str, float]:
    """What of a record can be drawn as a curve."""
    return {
        name: float(value)
        for name, value in record.items()
        if name != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    }
