"""`glassgpt prepare` and `glassgpt train` as a person types them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.train.data.shards import Shards, open_splits
from glassgpt.weights import load_config
from tests.conftest import SHIPPED

SMALL = [
    "--shape",
    "2x32x2",
    "--context",
    "32",
    "--batch-size",
    "4",
    "--eval-batches",
    "2",
    "--warmup-steps",
    "2",
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    for name in range(12):
        days = range(50 * name, 50 * name + 50)
        lines = [f"Day {n} was {'fair' if n % 3 else 'wet'}, and we went on to day {n + 1}.\n" for n in days]
        (folder / f"{name}.txt").write_text("".join(lines))
    arguments = ["prepare", str(folder), "-o", str(folder / "shards")]
    assert main([*arguments, "--val-fraction", "0.3", "--workers", "1"]) == 0
    return folder / "shards"


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def train(shards: Path, run: Path, *more: str) -> int:
    small = SMALL[2:] if "--init-from" in more else SMALL  # which has its own shape
    return main(["train", "--data", str(shards), "--out", str(run), "--device", "cpu", *small, *more])


def test_a_run_becomes_a_model(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(shards, run, "--steps", "30", "--eval-every", "10", "--lr", "0.01") == 0
    reported = capsys.readouterr().err
    assert "parameters" in reported
    assert "tokens/s on cpu" in reported
    assert "step 30  loss" in reported
    assert "MFU" in reported
    losses = [record["val_loss"] for record in records(run) if "val_loss" in record]
    assert losses == sorted(losses, reverse=True)
    page = (run / "report.html").read_text("utf-8")
    for line in (run / "samples.jsonl").read_text().splitlines():
        assert f"step {json.loads(line)['step']}<" in page
    assert json.loads((run / "environment.jsonl").read_text())["step"] == 0
    assert main(["generate", "Day 7", "--model", str(run), "--max-new-tokens", "8", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("Day 7")
    assert train(shards, run, "--steps", "30") == 2
    assert "already contains a run. Add --resume" in capsys.readouterr().err


@pytest.mark.slow
def test_one_long_text_holds_out_its_end(tmp_path: Path) -> None:
    text = "".join(f"Verse {n}: the wind went round and came again.\n" for n in range(600))
    (tmp_path / "one.txt").write_text(text)
    assert main(["prepare", str(tmp_path / "one.txt"), "-o", str(tmp_path / "shards"), "--workers", "1"]) == 0
    assert train(tmp_path / "shards", tmp_path / "run", "--steps", "2") == 0
    full = Shards.open(tmp_path / "shards")
    first, end = open_splits(tmp_path / "shards")
    assert len(first) + len(end) == len(full)
    assert end.read(0, len(end)).tolist() == full.read(len(first), len(end)).tolist()


def test_a_dry_run_writes_nothing(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(shards, tmp_path / "run", "--steps", "100", "--dry-run") == 0
    assert not (tmp_path / "run").exists()
    assert "4,096" not in capsys.readouterr().out  # the plan is for people: on stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--steps", "5", "--shape", "2by3"], "shape '2by3' is not a shape"),
        (["--steps", "5", "--shape", "2x33x2"], "n_embd 33 is not a multiple of n_head 2"),
        (["--steps", "0"], "steps is 0"),
        (["--steps", "5", "--resume"], "has no checkpoint to resume from"),
        (["--steps", "5", "--recipe", "gpt9"], "recipe 'gpt9' is not one of gpt1, gpt2"),
        (["--steps", "5", "--micro-batch-size", "3"], "micro_batch_size 3 does not divide batch_size 4"),
        (
            ["--steps", "5", "--init-from", SHIPPED, "--context", "2048"],
            "context 2048 is longer than the model's ",
        ),
        (["--steps", "5", "--device", "tpu"], "device 'tpu'"),
    ],
)
def test_a_mistake_gets_one_line(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert train(shards, tmp_path / "run", *more) == 2
    reported = capsys.readouterr().err.strip()
    assert message in reported
    assert len(reported.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_learning_on_from_a_model(shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(shards, run, "--init-from", SHIPPED, "--steps", "3", "--lr", "0.001", "--dropout", "0") == 0
    before = load_config(SHIPPED)
    assert records(run)[0]["loss"] < math.log(before.vocab_size) - 0.8  # a fresh one would begin there
    assert Config.load(run).n_embd == before.n_embd


def test_attention_can_have_a_dropout_of_its_own(shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(shards, run, "--steps", "1", "--dropout", "0.2", "--attention-dropout", "0") == 0
    config = Config.load(run)
    assert (config.embd_pdrop, config.resid_pdrop, config.attn_pdrop) == (0.2, 0.2, 0.0)


def test_a_run_goes_on_with_its_own_data_and_settings(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(shards, run, "--steps", "3", "--save-every", "1") == 0
    (tmp_path / "other.txt").write_text("Quite another text, about nothing at all.\n" * 300)
    assert (
        main(["prepare", str(tmp_path / "other.txt"), "-o", str(tmp_path / "other"), "--workers", "1"]) == 0
    )
    capsys.readouterr()
    assert train(tmp_path / "other", run, "--steps", "3", "--resume") == 2
    reported = capsys.readouterr().err.strip().splitlines()[-1]
    assert "was not trained on this data: --data has different tokens" in reported
    assert train(shards, run, "--steps", "3", "--resume", "--lr", "0.5") == 2
    assert "lr 0.5 differs from the run's 0.001" in capsys.readouterr().err
    assert (
        train(shards, run, "--steps", "3", "--resume", "--skip-bad-steps", "2", "--keep-checkpoints", "1")
        == 0
    )
    kept = json.loads((run / "settings.json").read_text())
    assert (kept["skip_bad_steps"], kept["keep_checkpoints"], kept["save_every"]) == (2, 1, 1)


# A command that sends itself a signal when it first writes to a place whose name holds a word.
SIGNALLED = """
import os, sys
number, word = int(sys.argv.pop(1)), sys.argv.pop(1)
def watch(event, arguments):
    global word
    if word is not None and event in ("open", "os.mkdir", "os.rename") and word in str(arguments[0]):
        word = None
        os.kill(os.getpid(), number)
sys.addaudithook(watch)
from glassgpt.cli import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_goes_on_exactly(shards: Path, tmp_path: Path, number: signal.Signals) -> None:
    settings = ["--steps", "40", "--save-every", "5", "--eval-every", "20", "--optimizer", "muon"]
    assert train(shards, tmp_path / "whole", *settings) == 0
    run = tmp_path / "cut"
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), "step-00000010"]
    done = subprocess.run(
        [*command, "train", "--data", str(shards), "--out", str(run), "--device", "cpu", *SMALL, *settings],
        stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=1800,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 0), done.stderr.decode()
    assert len(records(run)) < 40
    assert train(shards, run, *settings, "--resume") == 0
    full, cut = ([(r["step"], r["loss"]) for r in records(tmp_path / name)] for name in ("whole", "cut"))
    assert cut == full
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
