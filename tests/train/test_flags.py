"""What is typed holds: it is never taken for a default, never ignored, and absurd numbers are refused."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from glassgpt.cli import COMMANDS, main
from glassgpt.cli.parser.parse import parse
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.train.estimate import estimate_training
from glassgpt.train.init_model import init_model
from glassgpt.train.micro_batch import OutOfMemory, activation_bytes
from glassgpt.train.settings import RECIPES, TrainSettings, divisors, read_settings
from glassgpt.train.trainer import RunConfig, check_config

SMALL = [
    "--shape",
    "1x16x2",
    "--context",
    "16",
    "--batch-size",
    "4",
    "--eval-batches",
    "1",
    "--warmup-steps",
    "2",
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flags")
    (folder / "text.txt").write_text("".join(f"Day {n} was fair, and we went on.\n" for n in range(200)))
    arguments = ["prepare", str(folder / "text.txt"), "-o", str(folder / "shards"), "--tokenizer", "bytes"]
    assert main([*arguments, "--workers", "1"]) == 0
    return folder / "shards"


@pytest.fixture(autouse=True, scope="module")
def _no_estimate() -> Iterator[None]:
    """It tries a few steps first, which is not what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glassgpt.train.trainer.Trainer.estimate_needs", lambda trainer: None)
        yield


def train(shards: Path, run: Path, *more: str) -> int:
    return main(["train", "--data", str(shards), "--out", str(run), "--device", "cpu", *more])


@pytest.fixture(scope="module")
def finished(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps at another rate than the default, with a dropout of its own."""
    run = tmp_path_factory.mktemp("finished") / "run"
    more = ["--steps", "2", "--lr", "6e-4", "--keep-checkpoints", "1", "--dropout", "0.2"]
    assert train(shards, run, *SMALL, *more) == 0
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def settings_of(*words: str) -> TrainSettings:
    call = parse("train", COMMANDS["train"], ["--data", "d", "--out", "nowhere", *words])
    return call.keywords["settings"]  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_typed_default_goes_before_a_recipe(recipe: str) -> None:
    plain = TrainSettings(steps=5)
    for name, published in RECIPES[recipe].items():
        typed = settings_of(
            "--steps", "5", "--recipe", recipe, f"--{name.replace('_', '-')}", str(getattr(plain, name))
        )
        assert getattr(typed, name) == getattr(plain, name)
        for other in RECIPES[recipe].keys() - {name}:
            assert getattr(typed, other) == RECIPES[recipe][other]
        assert getattr(settings_of("--steps=5", f"--recipe={recipe}"), name) == published


def test_the_micro_batch_size_divides_that_of_the_recipe() -> None:
    assert settings_of("--steps", "5", "--recipe", "gpt1", "--micro-batch-size", "64").micro_batch_size == 64


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--lr", "1e-3"], "lr 0.001 differs from the run's 0.0006"),  # the default, typed
        (["--steps", "3"], "steps 3 differs from the run's 2, which its learning rates follow. Leave it out"),
        (["--steps", "3"], "/run --out OTHER"),
        (["--batch-size", "16"], "batch_size 16 differs from the run's 4"),
        (["--recipe", "gpt1"], "batch_size 64 differs from the run's 4"),
        (["--shape", "1x32x2"], "shape 1x32x2 differs from the run's 1x16x2"),
        (["--shape", "6x384x6"], "shape 6x384x6 differs from the run's 1x16x2"),
        (["--shape", "gpt2"], "shape gpt2 differs from the run's 1x16x2"),
        (["--shape", "rubbish"], "shape 'rubbish' is not a shape"),
        (["--dropout", "0.1"], "dropout 0.1 differs from the run's 0.2"),
        (["--attention-dropout", "0"], "attention_dropout 0.0 differs from the run's 0.2"),
        (["--init-from", "tiny"], "init_from tiny differs from the run's random initialization"),
        (["--init-from", "nosuch"], "init_from nosuch differs from the run's random initialization"),
    ],
)
def test_what_contradicts_the_run_is_refused(
    shards: Path, run: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    before = (run / "settings.json").read_text()
    assert train(shards, run, "--resume", *more) == 2
    reported = capsys.readouterr().err.strip()
    assert message in reported
    assert len(reported.splitlines()) == 1
    assert (run / "settings.json").read_text() == before


def test_what_agrees_with_the_run_is_accepted_and_some_things_may_change(shards: Path, run: Path) -> None:
    same = [*SMALL, "--steps", "2", "--lr", "0.0006", "--dropout", "0.2", "--attention-dropout", "0.2"]
    assert train(shards, run, "--resume", *same, "--precision", "auto", "--keep-checkpoints", "3") == 0
    assert json.loads((run / "settings.json").read_text())["keep_checkpoints"] == 3  # the default, typed
    assert train(shards, run, "--resume", "--micro-batch-size", "2") == 0  # nothing else needs saying
    kept = json.loads((run / "settings.json").read_text())
    assert (kept["keep_checkpoints"], kept["micro_batch_size"], kept["lr"], kept["init_from"]) == (
        3,
        2,
        6e-4,
        None,
    )


def test_data_and_steps_of_a_resumed_run_need_not_be_named(
    shards: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--out", str(run), "--device", "cpu"]
    assert main([*words, "--resume"]) == 0
    capsys.readouterr()
    saved = json.loads((run / "settings.json").read_text())
    assert saved["data"] == str(shards.resolve())
    (run / "settings.json").write_text(json.dumps({k: v for k, v in saved.items() if k != "data"}))
    assert main([*words, "--resume"]) == 2
    assert "run does not record it. Name a folder" in capsys.readouterr().err
    assert main(["train", "--out", str(run) + "-new", "--steps", "2"]) == 2
    assert capsys.readouterr().err.startswith("glassgpt: --data is missing. Name a folder")
    assert main(["train", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert shown.count("not needed with --resume") == 2
    assert shown.count("(required)") == 1  # --out


def test_a_switch_that_was_on_may_be_typed_again(run: Path) -> None:
    saved = json.loads((run / "settings.json").read_text())
    (run / "settings.json").write_text(
        json.dumps({**saved, "auto_micro_batch": True, "activation_checkpointing": True})
    )

    def resumed(*words: str) -> TrainSettings:
        call = parse("train", COMMANDS["train"], ["--data", "d", "--out", str(run), "--resume", *words])
        return call.keywords["settings"]  # type: ignore[attr-defined, no-any-return]

    for words in ([], ["--auto-micro-batch"], ["--activation-checkpointing", "--auto-micro-batch"]):
        found = resumed(*words)
        assert (found.auto_micro_batch, found.activation_checkpointing, found.compile) == (True, True, False)
    assert not resumed("--no-auto-micro-batch").auto_micro_batch


def test_torchrun_repeats_the_command(
    shards: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*SMALL, "--steps", "2", "--lr", "6e-4", "--keep-checkpoints", "1", "--dropout", "0.2"]
    assert train(shards, run, *command) == 2
    assert "already contains a run. Add --resume" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(shards, run, *command) == 0
    assert train(shards, run, *command, "--lr", "1e-3") == 2


def test_a_run_with_a_recipe_goes_on_with_the_same_command(shards: Path, tmp_path: Path) -> None:
    small = [*SMALL, "--micro-batch-size", "1", "--steps", "1", "--recipe", "gpt2"]
    assert train(shards, tmp_path / "run", *small) == 0
    assert train(shards, tmp_path / "run", *small, "--resume") == 0


def test_a_run_knows_the_model_it_began_from(
    shards: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on = tmp_path / "on"
    began = [
        "--init-from",
        str(run),
        "--steps",
        "1",
        "--context",
        "16",
        "--batch-size",
        "4",
        "--eval-batches",
        "1",
    ]
    assert train(shards, on, *began) == 0
    assert train(shards, on, *began, "--resume") == 0
    assert train(shards, on, "--resume", "--init-from", f"{on}/../run") == 0
    capsys.readouterr()
    assert train(shards, on, "--resume", "--init-from", "tiny") == 2
    assert f"init_from tiny differs from the run's {run}" in capsys.readouterr().err
    # A folder of before this was written down: what can be compared is.
    saved = json.loads((on / "settings.json").read_text())
    del saved["init_from"]
    (on / "settings.json").write_text(json.dumps(saved))
    assert train(shards, on, "--resume") == 0
    assert "init_from" not in json.loads((on / "settings.json").read_text())
    assert train(shards, on, "--resume", "--init-from", str(run)) == 0
    assert train(shards, on, "--resume", "--init-from", "tiny") == 2
    assert "init_from tiny differs from the run's model of 1x16x2" in capsys.readouterr().err
    assert train(shards, on, "--resume", "--init-from", str(tmp_path / "nosuch")) == 2


def test_a_start_has_its_own_shape(
    shards: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--steps", "1", "--context", "16", "--init-from", str(run)]
    assert train(shards, tmp_path / "on", *more, "--shape", "1x32x2") == 2
    assert "shape 1x32x2 differs from 1x16x2 of" in capsys.readouterr().err


def test_a_finished_run_says_so(
    shards: Path, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    say = lambda trainer: trainer.reporter.info("estimate")  # noqa: E731
    monkeypatch.setattr("glassgpt.train.trainer.Trainer.estimate_needs", say)
    assert train(shards, run, "--resume") == 0
    reported = capsys.readouterr().err
    assert reported.startswith("the run is finished: all of its 2 steps were already done")  # no estimate
    assert f"glassgpt generate --model {run}" in reported
    assert "--init-from" in reported
    assert "continue with --resume" not in reported


def test_a_program_that_goes_on_gives_the_runs_settings(run: Path, shards: Path) -> None:
    saved = read_settings(run)[0]
    asked = RunConfig(data=str(shards), out=run, settings=saved, resume=True)
    assert check_config(asked)[0].settings == saved
    other = dataclasses.replace(asked, settings=dataclasses.replace(saved, lr=TrainSettings(steps=1).lr))
    with pytest.raises(SettingError, match=r"lr 0.001 differs from the run's 0.0006"):
        check_config(other)


REFUSED = {
    **dict.fromkeys(
        ("lr", "matrix_lr", "grad_clip"), (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e30)
    ),
    **dict.fromkeys(("weight_decay", "z_loss"), (math.nan, math.inf, -1.0, 1e30)),
    **dict.fromkeys(("beta2", "label_smoothing"), (math.nan, math.inf, -1.0, 1.0)),
    "min_lr_ratio": (math.nan, math.inf, -1.0, 1.5),
    **dict.fromkeys(
        ("steps", "batch_size", "context", "eval_every", "eval_batches", "save_every", "keep_checkpoints",
         "micro_batch_size"),
        (0, -1, 10**25, 10**5000, True, 1.5, "4"),
    ),
    **dict.fromkeys(("warmup_steps", "skip_bad_steps", "seed"), (-1, 10**25, -(10**25), 1.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_out_of_its_range_is_refused_with_the_range(name: str) -> None:
    for value in REFUSED[name]:
        with pytest.raises(
            SettingError, match=rf"^{name} is .*; write a (whole )?number (from|above) .* to .*\.$"
        ):
            TrainSettings(**{"steps": 5, name: value})


def test_sizes_that_no_memory_holds(shards: Path, tmp_path: Path) -> None:
    for changes in (
        {"batch_size": 10**12, "micro_batch_size": 7},
        {"eval_batches": 10**8},
        {"batch_size": 2**20, "context": 1024},
    ):
        with pytest.raises(SettingError, match=r"134,217,728 tokens in (sequences|batches) of"):
            TrainSettings(steps=5, **changes)
    with pytest.raises(
        SettingError,
        match=r"does not divide batch_size 120000. Choose one of 1, 2, 3, 4, 5, 6, 8, 10, 12, 15.$",
    ):
        TrainSettings(steps=5, batch_size=120_000, micro_batch_size=7)
    settings = TrainSettings(steps=5)
    for shape in ("1000000x32x2", f"{10**25}x32x2", "2x1000000000x2"):
        with pytest.raises(SettingError, match=r"in shape is \d+; write a whole number from 1 to"):
            RunConfig(data=str(shards), out=tmp_path, settings=settings, shape=shape)
    large = RunConfig(data=str(shards), out=tmp_path, settings=settings, shape="1000x65536x1")
    with pytest.raises(SettingError, match=r"this machine has .* GiB of memory"):
        init_model(large, None)


def test_rows_that_no_memory_holds_at_once_are_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT2(Config(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    settings = TrainSettings(steps=1, batch_size=2**23, eval_batches=1, context=16, precision="float32")
    assert activation_bytes(model.config, settings, 2**23) > 2**36
    monkeypatch.setattr("glassgpt.train.estimate.total_memory", lambda: 2**36)
    with pytest.raises(OutOfMemory, match="Try --micro-batch-size"):
        estimate_training(model, settings, torch.zeros(1, 17, dtype=torch.long))


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.0])
@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_dropout_is_a_share(name: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"^{name} is .*; write a number from 0 to below 1 "):
        RunConfig(data="", out=Path(), settings=TrainSettings(steps=1), **{name: value})


def test_divisors() -> None:
    for n in (1, 2, 12, 36, 97, 120):
        assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]
