"""Run folders that somebody edited, cut or removed: one line says what is wrong, and never a traceback."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import FileFormatError, NonFiniteLossError, UserError
from glassgpt.files.text import Chunk
from glassgpt.model import GPT2
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train import loop
from glassgpt.train.checkpoint.run_folder import list_checkpoints
from glassgpt.train.data.document_parts import read_document_parts
from glassgpt.train.data.find_files import divide, find_sources
from glassgpt.train.data.prepare import prepare
from glassgpt.train.report.html import write_report
from glassgpt.train.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("no_trial")

DEEP = "[" * 100_000
SETTINGS = TrainSettings(
    steps=6, batch_size=2, context=8, warmup_steps=1, eval_every=2, eval_batches=1, save_every=2
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "a.txt").write_text("Rain again today, and more of it tomorrow.\n" * 100)
    prepare([folder / "a.txt"], folder / "shards", ByteTokenizer(), workers=1)
    return folder / "shards"


def train(data: Path, run: Path, *more: str) -> int:
    often = "--eval-batches 1 --eval-every 2 --save-every 2"
    words = f"--device cpu --steps 6 --shape 1x16x1 --context 8 --batch-size 2 {often}"
    return main(["train", "--data", str(data), "--out", str(run), *words.split(), *more])


@pytest.fixture(scope="module")
def half_done(data: Path, no_trial: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two steps left to do."""
    run = tmp_path_factory.mktemp("runs") / "run"
    assert train(data, run) == 0
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    return run


@pytest.fixture
def run(half_done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half_done, tmp_path / "run"))


def changed(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


WITH_OTHER_KEYS = {"step": 1, "loss": "low", "tokens_per_s": None, "val_loss": [1], "lr": {}}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("damage", "warning"),
    [
        (
            lambda log: log.write_bytes(b"\xff\xfegarbage\nmore\n" + log.read_bytes()),
            "log.jsonl, line 1 is not",
        ),
        (
            lambda log: log.write_bytes(log.read_bytes().replace(b"\n", b"\n[1, 2]\n", 1)),
            "log.jsonl, line 2 is",
        ),
        (
            lambda log: log.write_bytes(f'{{"step": {DEEP}}}\n'.encode() + log.read_bytes()),
            "line 1 is not a record",
        ),
        (
            lambda log: log.write_bytes(b'{"step": "3"}\n' + log.read_bytes()),
            "line 1 is not a record of a step",
        ),
        (lambda log: log.write_bytes(b'{"step": 1, "loss": NaN}\n' + log.read_bytes()), ""),
        (lambda log: log.write_text(json.dumps(WITH_OTHER_KEYS) + "\n" + log.read_text()), ""),
        (lambda log: log.write_bytes(log.read_bytes()[:-9]), ""),  # as a kill leaves it
        (lambda log: log.unlink(), ""),
        (
            lambda log: (log.parent / "environment.jsonl").write_text('{"step": 0, "time": 7}\n[]\n{}\n'),
            "line 2",
        ),
        (
            lambda log: (log.parent / "samples.jsonl").write_text('{"step": 2}\nx\ny\n'),
            "samples.jsonl, line 2",
        ),
    ],
)
def test_a_log_that_was_edited_is_read_as_far_as_it_goes(
    data: Path, run: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], warning: str
) -> None:
    damage(run / "log.jsonl")
    assert train(data, run, "--resume") == 0
    assert warning in capsys.readouterr().err
    assert "Loss" in (run / "report.html").read_text("utf-8")
    steps = [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert steps[-2:] == [5, 6]


def swap_heads(run: Path) -> None:
    changed(run / "config.json", n_head=2)  # which the shapes of the weights do not show


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "settings.json").unlink(), "settings.json cannot be read"),
        (lambda run: (run / "settings.json").write_text(DEEP), "settings.json cannot be read"),
        (lambda run: (run / "settings.json").write_text("[]"), "settings.json cannot be read"),
        (
            lambda run: changed(run / "settings.json", lr="high"),
            "settings.json cannot be read (lr is 'high')",
        ),
        (
            lambda run: changed(run / "settings.json", seed=None),
            "settings.json cannot be read (seed is None)",
        ),
        (lambda run: changed(run / "settings.json", speed=9), "(there is no setting 'speed')"),
        (
            lambda run: changed(run / "settings.json", optimizer="muon"),
            "settings.json names other optimizers",
        ),
        (lambda run: (run / "config.json").write_text(DEEP), "config.json is not JSON"),
        (lambda run: changed(run / "config.json", n_layer=2), "config.json does not match"),
        (lambda run: changed(run / "config.json", n_layer=10**9), "config.json does not match"),
        (lambda run: changed(run / "config.json", vocab_size=2**70), "no model is that large"),
        (swap_heads, "config.json does not match"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoint to resume from"),
        (
            lambda run: [(folder / "DONE").write_text(DEEP) for folder in list_checkpoints(run)],
            "no checkpoint in",
        ),
    ],
)
def test_a_run_that_cannot_resume_says_why(
    data: Path, run: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], message: str
) -> None:
    damage(run)
    assert train(data, run, "--resume") == 2
    reported = capsys.readouterr().err.strip().splitlines()
    assert message in reported[-1]
    assert reported[-1].startswith("glassgpt: ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.filterwarnings("default")
def test_a_pipe_in_place_of_a_checkpoint_is_not_waited_for(
    data: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = run / "checkpoints" / "step-00000004" / "training.safetensors"
    state.unlink()
    os.mkfifo(state)
    assert train(data, run, "--resume") == 0
    assert "Resuming from the one before it" in " ".join(capsys.readouterr().err.split())


def test_a_file_named_checkpoints(data: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("notes")
    assert train(data, run) == 2
    assert "cannot write" in capsys.readouterr().err.strip().splitlines()[-1]


def test_only_numbered_folders_are_checkpoints(data: Path, run: Path) -> None:
    shutil.copytree(run / "checkpoints" / "step-00000002", run / "checkpoints" / "step-abc")
    assert [folder.name for folder in list_checkpoints(run)] == ["step-00000002", "step-00000004"]
    assert train(data, run, "--resume") == 0
    assert (run / "checkpoints" / "step-abc").exists()


@pytest.mark.parametrize("file", ["settings.json", "config.json"])
def test_a_report_says_which_file_it_misses(run: Path, file: str) -> None:
    (run / file).write_text(DEEP)
    with pytest.raises(UserError, match=file):
        write_report(run)


def small() -> GPT2:
    torch.manual_seed(0)
    return GPT2(Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=1))


def batches(step: int) -> object:
    return iter(lambda: torch.randint(0, 16, (2, 9)), None)


def test_a_run_folder_that_is_removed_is_noticed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    steps = loop.train_loop(small(), batches, [torch.zeros(1, 9, dtype=torch.int64)], out, SETTINGS)
    next(steps)
    shutil.rmtree(out)
    out.mkdir()  # as a save that is under way at that moment does
    with pytest.raises(UserError, match="was removed or replaced during the run"):
        list(steps)


@pytest.mark.parametrize(
    ("bad_step", "advice"), [(1, "There is no checkpoint yet: start a new run"), (3, "--resume")]
)
def test_the_advice_after_a_bad_loss_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad_step: int, advice: str
) -> None:
    real, steps = loop.train_step, []

    def train_step(*of: object) -> tuple[float, float, bool]:
        steps.append(1)
        return (math.nan, math.nan, False) if len(steps) == bad_step else real(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "train_step", train_step)
    with pytest.raises(NonFiniteLossError) as caught:
        list(
            loop.train_loop(
                small(), batches, [torch.zeros(1, 9, dtype=torch.int64)], tmp_path / "run", SETTINGS
            )
        )
    assert advice in str(caught.value)
    assert ("--resume" in str(caught.value)) == bool(list_checkpoints(tmp_path / "run"))


# Texts that change while they are read.


def shorten(file: Path) -> None:
    os.truncate(file, 20)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("harm", [shorten, Path.unlink])
@pytest.mark.parametrize("begun", [True, False])
def test_a_text_that_shrinks_while_it_is_read_is_named(
    tmp_path: Path, name: str, harm: Callable[[Path], None], begun: bool
) -> None:
    file = tmp_path / name
    line = '{"text": "rain"}\n' if name.endswith("l") else "Rain again today, and more of it tomorrow.\n"
    file.write_text(line * 100_000)
    units = divide(find_sources([file]), 1 << 20)
    if begun and harm is Path.unlink:
        return  # who has a file open may read it to its end

    def read() -> None:
        for number, unit in enumerate(units):
            if number == 1 and not begun:
                harm(file)
            for count, _ in enumerate(read_document_parts(unit, 1 << 30, lambda n: None, None, 256)):
                if count == 0 and begun:
                    harm(file)

    with pytest.raises(FileFormatError, match=f"{name} (changed while it was being read|cannot be read)"):
        read()


def test_a_text_that_was_longer_when_it_was_divided(tmp_path: Path) -> None:
    """Where the cut would be nothing is left to look at."""
    (tmp_path / "a.txt").write_text("x" * 100)
    (source,) = find_sources([tmp_path / "a.txt"])
    os.truncate(tmp_path / "a.txt", 10)
    with pytest.raises(FileFormatError, match=r"a\.txt changed while it was being read: it had 100 bytes"):
        list(read_document_parts((Chunk(source, 50, 100),), 1 << 30, lambda n: None, None, 256))
