"""`glassgpt.train(...)` does from Python what the command does, silently, and returns the run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import glassgpt
from glassgpt.cli import main
from glassgpt.errors import SettingError
from glassgpt.train.report.reporter import Reporter
from glassgpt.train.trainer import Trainer
from glassgpt.weights import load_tokenizer

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json")
pytestmark = pytest.mark.usefixtures("no_trial")

OPTIONS: dict[str, Any] = {
    "steps": 8, "seed": 3, "shape": "1x32x2", "context": 32, "batch_size": 4, "save_every": 3,
    "eval_every": 4, "eval_batches": 1, "warmup_steps": 2, "device": "cpu", "optimizer": "muon",
    "prompt": "Day",
}  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    text = "".join(f"Day {n} was {'fair' if n % 3 else 'wet'}, and we went on.\n" for n in range(400))
    (folder / "a.txt").write_text(text)
    assert main(["prepare", str(folder / "a.txt"), "-o", str(folder / "shards"), "--workers", "1"]) == 0
    return folder / "shards"


def untimed(run: Path) -> list[dict]:
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != "tokens_per_s"} for record in records]


def test_python_and_the_command_give_the_same_run(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["train", "--data", str(shards), "--out", str(tmp_path / "command"), *flags]) == 0
    capsys.readouterr()
    run = glassgpt.train(data=shards, out=tmp_path / "python", **OPTIONS)
    assert capsys.readouterr() == ("", "")
    command = tmp_path / "command"
    names = {file.relative_to(command) for file in command.rglob("*")}
    assert {file.relative_to(run.path) for file in run.path.rglob("*")} == names
    for name in ("model.safetensors", "config.json", "settings.json", "tokenizer.json", "samples.jsonl"):
        assert (run.path / name).read_bytes() == (command / name).read_bytes(), name
    assert untimed(run.path) == untimed(command)
    assert (run.steps_done, run.step, run.finished) == (8, 8, True)
    assert run.records[-1]["loss"] == run.loss
    assert run.records[-1]["val_loss"] == run.val_loss
    assert run.settings.matrix_lr == 0.02
    model = run.load(device="cpu")
    assert model.generate("Day 7", max_new_tokens=3, seed=1).text


class Recorder(Reporter):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.samples: list[str] = []
        self.messages: list[str] = []
        self.estimates: list[int] = []  # the steps that they are of

    def show_plan(self, run: Trainer) -> None:
        self.estimates.append(run.steps_left)

    def log(self, record: Mapping[str, Any]) -> None:
        self.steps.append(record["step"])

    def show_sample(self, text: str) -> None:
        self.samples.append(text)

    def info(self, message: str) -> None:
        self.messages.append(message)


def test_a_run_that_is_stopped_can_be_resumed(shards: Path, tmp_path: Path) -> None:
    reporter = Recorder()
    run = glassgpt.train(
        shards, tmp_path / "run", reporter=reporter, stop=lambda: reporter.steps[-1:] == [4], **OPTIONS
    )
    assert (run.step, run.steps_done, run.finished) == (5, 5, False)
    assert reporter.steps == [1, 2, 3, 4, 5]
    assert reporter.estimates == [8]
    assert len(reporter.samples) == 2
    assert all(sample.startswith("Day") for sample in reporter.samples)
    assert any("report.html" in message for message in reporter.messages)
    with pytest.raises(SettingError, match="already contains a run"):
        glassgpt.train(shards, tmp_path / "run", **OPTIONS)
    for name in TOKENIZER_FILES:  # as if they had been lost
        (tmp_path / "run" / name).unlink(missing_ok=True)
    reporter = Recorder()
    rest = glassgpt.train(out=tmp_path / "run", resume=True, device="cpu", reporter=reporter)
    assert (rest.step, rest.steps_done, rest.finished) == (8, 3, True)
    assert reporter.estimates == [3]
    assert all(sample.startswith("Day") for sample in reporter.samples)  # the run's own prompt
    assert load_tokenizer(str(rest.path)).hash == load_tokenizer(str(shards)).hash
    full = glassgpt.train(shards, tmp_path / "whole", **OPTIONS)
    stopped = untimed(rest.path)
    assert "val_loss" in stopped[4]  # where it stopped it was evaluated once more
    del stopped[4]["val_loss"]
    assert stopped == untimed(full.path)
    assert (rest.path / "model.safetensors").read_bytes() == (full.path / "model.safetensors").read_bytes()
    with pytest.raises(SettingError, match=r"lr 0.5 differs from the run's"):
        glassgpt.train(shards, tmp_path / "run", resume=True, lr=0.5)


def test_ctrl_c_finishes_the_step_saves_and_raises(shards: Path, tmp_path: Path) -> None:
    class Interrupting(Recorder):
        def log(self, record: Mapping[str, Any]) -> None:
            super().log(record)
            if record["step"] == 4:
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            glassgpt.train(shards, tmp_path / "run", reporter=Interrupting(), **OPTIONS)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert [folder.name for folder in sorted((tmp_path / "run" / "checkpoints").glob("step-*"))] == [
        "step-00000003", "step-00000005",
    ]  # fmt: skip
    assert (tmp_path / "run" / "report.html").exists()
    assert glassgpt.train(shards, tmp_path / "run", resume=True, device="cpu").finished


def test_a_handler_of_the_programs_own_is_left_alone(shards: Path, tmp_path: Path) -> None:
    received: list[int] = []

    class Interrupting(Recorder):
        def log(self, record: Mapping[str, Any]) -> None:
            if record["step"] == 4:
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        assert glassgpt.train(shards, tmp_path / "run", reporter=Interrupting(), **OPTIONS).finished
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [signal.SIGINT]


def test_what_a_run_warns_of_is_a_warning(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(out: Path) -> Path:
        raise OSError("no space")

    monkeypatch.setattr("glassgpt.train.trainer.write_report", fail)
    with pytest.warns(UserWarning, match="no report was written: no space"):
        assert glassgpt.train(shards, tmp_path / "run", **OPTIONS).finished


def test_a_recipe_and_what_goes_before_it(shards: Path, tmp_path: Path) -> None:
    run = glassgpt.train(
        shards, tmp_path / "run", recipe="gpt1",
        **{k: v for k, v in OPTIONS.items() if k not in ("warmup_steps", "optimizer")},
    )  # fmt: skip
    assert (run.settings.warmup_steps, run.settings.beta2, run.settings.batch_size) == (2000, 0.999, 4)


def test_mistakes(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'batchsize'. Did you mean 'batch_size'"
    ):
        glassgpt.train(shards, tmp_path / "run", steps=1, batchsize=4)
    with pytest.raises(SettingError, match="steps is missing"):
        glassgpt.train(shards, tmp_path / "run")
    with pytest.raises(SettingError, match=r"matrix_lr 0.1 .*Add --optimizer muon"):
        glassgpt.train(shards, tmp_path / "run", steps=1, matrix_lr=0.1)
    with pytest.raises(SettingError, match="has no checkpoint to resume from"):
        glassgpt.train(shards, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_it_is_a_package_and_a_function_and_costs_nothing_to_import() -> None:
    program = (
        "import sys, glassgpt; assert callable(glassgpt.train); "
        "from glassgpt.train.settings import TrainSettings; import glassgpt.train.report.reporter; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=300).returncode == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert glassgpt.train.settings.TrainSettings(steps=1).batch_size == 16  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile": "no"}, "compile is 'no'"),
        ({"deterministic": 1}, "deterministic is 1"),
        ({"shape": [1, 16, 1]}, "is not a shape"),
        ({"steps": "many"}, "steps is 'many'"),
    ],
)
def test_values_of_the_wrong_type_are_refused(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        glassgpt.train(tmp_path, tmp_path / "run", **{"steps": 1, **options})
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match="data is"):
        glassgpt.train([tmp_path], tmp_path / "run", steps=1)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'settings'\.$"):
        glassgpt.train(tmp_path, tmp_path / "run", settings=3)
