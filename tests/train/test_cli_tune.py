"""`glassgpt tune` as a person types it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train.data.shards import Shards, Split
from glassgpt.train.finetune.run import time_for_training
from glassgpt.train.finetune.text import choose_prompt
from glassgpt.train.preflight import choose_output
from glassgpt.weights import Checkpoint, save_checkpoint
from tests.conftest import SHIPPED

QUICK = ["--device", "cpu", "--minutes", "0.1"]


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of a manner of its own, which is soon learned."""
    winds = ("north", "east", "west")
    lines = [f"Day {n}. Wind {winds[n % 3]}, {n % 7} knots; mended the {n % 5}th net.\n" for n in range(700)]
    file = tmp_path_factory.mktemp("tune") / "diary.txt"
    file.write_text("".join(lines))
    return file


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that knows nothing yet, small enough to learn in seconds and large enough for LoRA."""
    config = Config(vocab_size=257, n_positions=64, n_embd=256, n_layer=4, n_head=4)
    torch.manual_seed(0)
    tensors = {name: value.numpy() for name, value in GPT2(config).state_dict().items()}
    folder = tmp_path_factory.mktemp("models") / "blank"
    save_checkpoint(Checkpoint(config, tensors, ByteTokenizer(), source="blank"), folder)
    return str(folder)


def perplexities(table: str) -> list[float]:
    return [float(number) for number in re.findall(r"^(?:before|after) +([\d.]+) ", table, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--lora"]])
def test_a_model_learns_a_diary(
    diary: Path,
    blank: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
) -> None:
    out = tmp_path / "mine"
    for name in ("EPOCHS", "MAX_EPOCHS"):  # an end by work, not by the clock
        monkeypatch.setattr(f"glassgpt.train.finetune.settings.{name}", 1)
    ample = ["--device", "cpu", "--minutes", "60"]
    words = ["tune", str(diary), "--model", blank, "--out", str(out), *ample, *more, "--prompt", "Day 8."]
    assert main(words) == 0
    said = capsys.readouterr()
    before, after = perplexities(said.out)
    assert after < 0.7 * before
    assert said.out.count("Day 8.") >= 2  # a sample before and one after
    assert "memory" in said.err
    assert "tokens/s on cpu" in said.err
    learned = float(re.search(r"\(([\d.]+)% of the model\)", said.err)[1])
    assert learned <= 2.0 if more else learned == 100.0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in out.iterdir()}
    assert list(tmp_path.iterdir()) == [out]
    rates = (
        r"learning rate \S+;"
        if more
        else r"learning rates 2.0e-03 \(Muon, matrices\) and \S+ \(AdamW, the rest\)"
    )
    assert re.search(rates, said.err)
    assert f"report: {out / 'report.html'}" in said.err
    page = (out / "report.html").read_text()
    assert page.count("Day 8.") == 2
    assert "<svg" in page
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    assert "val_loss" in records[-1]
    assert main(["generate", "Day 9.", "--model", str(out), "--max-new-tokens", "8", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("Day 9.")
    assert main(["tune", str(diary), "--out", str(out), *QUICK]) == 2
    assert "already exists. Choose another folder with --out" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("more", [[], ["--lora"]])
def test_a_gpu_writes_samples_before_and_after(
    diary: Path, blank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    out = tmp_path / "mine"
    words = ["tune", str(diary), "--model", blank, "--out", str(out), "--device", "cuda", "--minutes", "0.2"]
    assert main([*words, *more, "--prompt", "Day 8."]) == 0
    said = capsys.readouterr()
    before, after = perplexities(said.out)
    assert after < before
    assert said.out.count("Day 8.") >= 2


def test_the_time_limit_is_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was spent before, a step, and two more measurements like the first are taken off it."""
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    plan = SimpleNamespace(seconds=lambda steps: 7.0 * steps)
    assert time_for_training(600, 1000 - 90, 1000 - 20, plan) == 600 - 90 - 2 * 20 - 7  # type: ignore[arg-type]
    assert time_for_training(100, 1000 - 90, 1000 - 20, plan) == 50  # type: ignore[arg-type]


def test_a_dry_run_writes_nothing(
    diary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("glassgpt.train.estimate.measure_throughput", lambda *of: 1e5)
    assert main(["tune", str(diary), "--dry-run", "--device", "cpu", "--lora", "--model", SHIPPED]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    learned = re.search(r"training [\d,]+ parameters \(([\d.]+)% of the model\)", said.err)
    assert learned is not None
    assert 0 < float(learned[1]) <= 2
    assert re.search(r"every \d+ steps: at most .+", said.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_figures_for_programs(
    diary: Path, blank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    few = ["--device", "cpu", "--minutes", "0.03", "--lora", "--model", blank]
    code = main(["tune", str(diary), "-o", str(out), *few, "--json"])
    said = capsys.readouterr()
    if code == 1:  # a machine so slow that two seconds teach nothing says so
        assert "nothing was written" in said.err
        assert not out.exists()
        return
    figures = json.loads(said.out)
    assert figures["out"] == str(out)
    assert figures["perplexity_after"] < figures["perplexity_before"]
    assert figures["trained_parameters"] <= 0.02 * figures["parameters"]
    assert 0 < figures["best_step"] <= figures["steps"]


def write(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "content", "more", "message"),
    [
        ("empty.txt", b"", [], "is empty"),
        ("blank.txt", b"   \n", [], "the text has"),
        ("tiny.txt", b"Only a few words.", [], "two windows of "),
        ("latin.txt", b"caf\xe9 " * 4000, [], "is not UTF-8 (byte 0xe9"),
        ("missing.txt", None, [], "does not exist"),
        ("picture.png", b"png", [], "is not of a known file type"),
        ("good.txt", b"word " * 4000, ["--model", "no-such-model"], "no-such-model"),
        (
            "good.txt",
            b"word " * 4000,
            ["--minutes", "0"],
            "--minutes is 0.0; write a number above 0",
        ),
        ("good.txt", b"word " * 4000, ["--device", "tpu"], "device 'tpu'"),
    ],
)
def test_a_mistake_gets_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes | None,
    more: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = str(tmp_path / name) if content is None else write(tmp_path, name, content)
    assert main(["tune", file, "--out", str(tmp_path / "out"), "--model", SHIPPED, *more]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if content is None else [name])


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (("my.txt",), "my-tuned"),
        (("letters/", "b.md"), "letters-tuned"),
        (("deep/corpus.jsonl.xz",), "corpus-tuned"),
        (("books/*.txt",), "text-tuned"),
        ((".",), "here-tuned"),
    ],
)
def test_where_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], wanted: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert choose_output(files, None) == Path(wanted)
    assert choose_output(files, "elsewhere") == Path("elsewhere")
    (tmp_path / "here" / "elsewhere").touch()
    with pytest.raises(SettingError, match="already exists"):
        choose_output(files, "elsewhere")


def test_an_interrupted_run_is_noticed(
    diary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    words = ["tune", str(diary), "--model", SHIPPED, "--out", str(out), *QUICK]
    assert main([*words, "--resume"]) == 2
    assert f"no interrupted run of {out} to resume. Leave out --resume" in capsys.readouterr().err
    checkpoint = tmp_path / ".mine.tuning" / "checkpoints" / "step-00000010"
    checkpoint.mkdir(parents=True)
    (checkpoint / "DONE").write_text("{}")
    (tmp_path / ".mine.tuning" / "tuning.json").write_text("{}")
    assert main(words) == 2
    assert "Add --resume to continue it, choose another folder" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 2
    assert "tuning.json is damaged. Remove" in capsys.readouterr().err


def test_samples_start_with_words_of_the_val_split() -> None:
    tokenizer = ByteTokenizer()
    ids = [*"\u20ac".encode()[1:], *b"The tide was out and"]
    shards = Shards.from_array(np.array(ids, np.uint32))
    assert choose_prompt(Split(shards, 0, len(ids)), tokenizer) == "The tide w"
    blank = Shards.from_array(np.array([32] * 40, np.uint32))
    assert choose_prompt(Split(blank, 0, 40), tokenizer) is None


def test_no_file_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune"]) == 2
    assert "FILE... is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_so_far(diary: Path, blank: str, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    command = [sys.executable, "-m", "glassgpt", "tune", str(diary), "--out", str(out), "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--minutes", "1", "--model", blank],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and not (out / "model.safetensors").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, reported = process.communicate(timeout=600)
    assert process.returncode == 0, reported
    assert "stopping after this step" in reported
    assert "stopped after" in reported
    assert f"the best model so far is in {out}" in reported
    assert "to continue, add --resume to the same command" in reported
    before, after = perplexities(said)
    assert after < before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".mine.tuning", "mine"]
    # A limit that is all but used up leaves one step to do; what was picked before stays.
    assert main([*command[3:], "--minutes", "0.001", "--model", blank, "--resume"]) == 0
    assert list(tmp_path.iterdir()) == [out]
