"""Trackers: each record goes to each of them, and none of them can stop the run."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from glassgpt.cli import dashboard
from glassgpt.errors import SettingError
from glassgpt.train.report.trackers import check_trackers, open_trackers

RECORDS = [
    {"step": 5, "loss": 2.5, "lr": 1e-3, "val_loss": 2.6, "sample": "Once upon\na time"},
    {"step": 6, "loss": float("nan"), "lr": 1e-3, "skipped": True},
    {"step": 7, "loss": 2.4, "lr": 1e-3},
]


class StandIn(types.ModuleType):
    """wandb's three functions; `broken` ones raise."""

    def __init__(self, name: str, broken: bool = False) -> None:
        super().__init__(name)
        self.__spec__ = types.SimpleNamespace(name=name)  # type: ignore[assignment]
        self.calls: list[tuple] = []
        self.broken = broken

    def init(self, **facts: object) -> None:
        self.calls.append(("init", facts))

    def log(self, figures: dict, step: int) -> None:
        self.calls.append(("log", figures, step))
        if self.broken:
            raise ConnectionError("no route to host")

    def finish(self) -> None:
        self.calls.append(("finish",))


def log_records(
    out: Path, trackers: tuple[str, ...] = (), tensorboard: bool = False, first: int = 4
) -> list[str]:
    warnings: list[str] = []
    with open_trackers(out, {"lr": 0.5}, first, tensorboard, trackers, warnings.append) as log:
        for record in RECORDS:
            log(record)
    return warnings


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_logs_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    package = StandIn(name)
    monkeypatch.setitem(sys.modules, name, package)
    check_trackers(False, (name,))
    assert log_records(tmp_path, (name,)) == []
    (_, facts), *logs, last = package.calls
    assert facts["project"] == "glassgpt"
    assert facts["config"] == {"lr": 0.5}
    assert facts["name"].startswith(tmp_path.name)
    assert logs[0] == ("log", {"loss": 2.5, "lr": 1e-3, "val_loss": 2.6}, 5)
    assert "loss" not in logs[1][1]  # what is no number is no point of a curve
    assert last == ("finish",)
    log_records(tmp_path, (name,))  # resumed, it is the same run there, too
    again = next(call for call in package.calls[1:] if call[0] == "init")[1]
    assert (again["name"], again["resume"]) == (facts["name"], "allow")


def test_a_tracker_that_fails_gives_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, fine = StandIn("wandb", broken=True), StandIn("trackio")
    monkeypatch.setitem(sys.modules, "wandb", broken)
    monkeypatch.setitem(sys.modules, "trackio", fine)
    (warning,) = log_records(tmp_path, ("wandb", "trackio"))
    assert warning.startswith("wandb: ConnectionError: no route to host")
    assert len([call for call in fine.calls if call[0] == "log"]) == 3
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))  # not even init
    (warning,) = log_records(tmp_path, ("wandb",))
    assert "AttributeError" in warning


def test_samples_are_kept_and_those_of_undone_steps_dropped(tmp_path: Path) -> None:
    old = [{"step": 2, "text": "two"}, {"step": 4, "text": "four"}, {"step": 6, "text": "six"}]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    assert log_records(tmp_path) == []
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [(line["step"], line["text"]) for line in lines] == [
        (2, "two"),
        (4, "four"),
        (5, "Once upon\na time"),
    ]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert log_records(tmp_path, tensorboard=True) == []
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, round(event.value, 3)) for event in found.Scalars("loss")] == [(5, 2.5), (7, 2.4)]
    assert [event.step for event in found.Scalars("val_loss")] == [5]
    (sample,) = found.Tensors("sample/text_summary")
    assert b"Once upon" in sample.tensor_proto.string_val[0]


def test_a_missing_package_is_reported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="'neptune' is not one of wandb, trackio"):
        check_trackers(False, ("neptune",))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        SettingError, match=r'tensorboard is not installed. Type: pip install "glassgpt\[tens'
    ):
        check_trackers(True, ())
    with pytest.raises(SettingError, match=r"wandb is not installed\. Type: pip install wandb"):
        check_trackers(False, ("wandb",))


def test_without_a_terminal_there_are_plain_lines_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with dashboard.live_metrics("training", 10) as show:
        for step in range(1, 11):
            figures = {
                "step": step,
                "loss": 3.0,
                "lr": 1e-3,
                "grad_norm": 0.5,
                "tokens_per_s": 1234,
                "mfu": 0.4,
            }
            show({**figures, **({"val_loss": 3.1} if step == 10 else {})})
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("step 1  loss 3.000  lr 1.0e-03  grad norm 0.50  1,234 tokens/s  MFU 40%  ")
    assert first.endswith(" left")
    assert last == "step 10  loss 3.000  val loss 3.100  lr 1.0e-03  grad norm 0.50  1,234 tokens/s  MFU 40%"


def test_the_course_of_the_loss_in_one_line() -> None:
    signs = "▁▂▃▄▅▆▇█"
    assert dashboard.spark([8, 7, 6, 5, 4, 3, 2, 1], signs) == "█▇▆▅▄▃▂▁"
    assert dashboard.spark([2.0, 2.0], signs) == "▁▁"
    assert len(dashboard.spark([float(n) for n in range(1000)], signs)) == dashboard.SPARK_WIDTH
