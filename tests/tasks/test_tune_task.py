"""`tune --task`: it learns from pairs and labels, resumes exactly, and writes what the commands load."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import glassgpt as package
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.tasks.records import Problems
from glassgpt.train.finetune import task as finetune_task
from glassgpt.train.finetune.task import head_of
from glassgpt.train.finetune.tune import tune
from glassgpt.train.objectives.classification import add_head
from glassgpt.train.preflight import check_adapter
from glassgpt.train.report.reporter import Reporter
from glassgpt.weights import load_checkpoint, save_checkpoint
from tests.cli.conftest import Result
from tests.tasks.conftest import PAIRS, Lines, make_model

pytestmark = pytest.mark.usefixtures("no_trial")

SHORT = """
tokens = ["<to-fr>"]
source = "en"
target = "fr"
format = "{source}<to-fr>{target}<|endoftext|>"
max_target_tokens = 30
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model that knows no task."""
    model = make_model("tldr", n_embd=64)
    model.task = None
    model.tensors = {k: v / 5 if k == "wte.weight" else v for k, v in model.tensors.items()}
    save_checkpoint(model, tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def pairs(lines: Lines) -> Path:
    found = (json.dumps({"en": en, "fr": fr}) for en, fr in PAIRS * 6)
    return lines("pairs.jsonl", *found, "broken", '{"en": "x"}')


def test_a_head_starts_as_its_seed_says() -> None:
    model = GPT2(Config(n_layer=1, n_embd=16, n_head=2, vocab_size=30, n_positions=8))
    torch.manual_seed(1)
    first = head_of(add_head(model, 3, 5))
    torch.manual_seed(2)
    assert np.array_equal(first, head_of(add_head(model, 3, 5)))
    assert not np.array_equal(first, head_of(add_head(model, 3, 6)))


@pytest.mark.slow
def test_it_learns_from_pairs(base: Path, pairs: Path, lines: Lines, tmp_path: Path) -> None:
    task = lines("mine.toml", *SHORT.splitlines())
    said: list[str] = []

    class Listening(Reporter):
        def info(self, message: str) -> None:
            said.append(message)

    result = tune(pairs, model=str(base), task=task, out=tmp_path / "out", minutes=5, reporter=Listening())
    assert said == [
        "note: record 97: is not JSON: 'broken'; skipped",
        "note: record 98: has no field 'fr' (it has 'en'); skipped",
        "note: 2 of 98 records skipped, 0 noted: 1 not JSON, 1 without a field",
    ]
    assert result.improved
    assert result.perplexity_after is not None
    assert result.perplexity_after < result.perplexity_before / 10
    gpt = result.load()
    assert gpt.task is not None
    assert gpt.task.tokens == ("<to-fr>",)
    found = [gpt.summarize(en) for en, _ in PAIRS]
    learned = [text for text in found if text.startswith("Le ") and "dort" in text]
    assert len(learned) > 0.8 * len(found), found


@pytest.mark.slow
def test_it_learns_to_classify(
    base: Path, lines: Lines, tmp_path: Path, glassgpt: Callable[..., Result]
) -> None:
    words = {"negative": ("red", "green"), "positive": ("blue", "black")}
    rows = [
        f"The {word} {i % 7} cat.\t{label}"
        for i in range(40)
        for label, some in words.items()
        for word in some
    ]
    file = lines("labels.tsv", "sentence\tlabel", *rows, "The cat.\tmeh")
    made = glassgpt("tune", file, "--task", "sentiment", "--model", base, "--out", tmp_path / "out", "--json")
    assert made.code == 0, made.err
    assert "record 161: the label 'meh' is not one of negative, positive; skipped" in made.err
    assert "1 of 161 records skipped" in made.err
    gpt = package.load(tmp_path / "out")
    assert gpt.classify("The red 3 cat.").label == "negative"
    assert gpt.classify("The black 3 cat.").label == "positive"
    classified = glassgpt("classify", "--file", file, "--model", tmp_path / "out")
    assert "accuracy 100.0% (160 of 160 labeled records)" in classified.err


@pytest.mark.slow
def test_an_interrupted_run_resumes_exactly(
    base: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune_task, "MIN_STEPS_PER_EPOCH", 4)
    monkeypatch.setattr(finetune_task, "MIN_STEPS", 16)
    options = {"model": str(base), "task": "en-fr", "minutes": 5.0, "seed": 2}
    whole = tune(pairs, out=tmp_path / "whole", **options)  # type: ignore[arg-type]

    steps = itertools.count(1)
    cut = tune(pairs, out=tmp_path / "cut", stop=lambda: next(steps) >= 7, **options)  # type: ignore[arg-type]
    assert not cut.finished
    again = tune(pairs, out=tmp_path / "cut", resume=True, **options)  # type: ignore[arg-type]
    assert (again.steps, again.best_step) == (whole.steps, whole.best_step)
    one, other = load_checkpoint(tmp_path / "whole"), load_checkpoint(tmp_path / "cut")
    assert all((one.tensors[name] == other.tensors[name]).all() for name in one.tensors)
    with pytest.raises(SettingError, match="already exists"):
        tune(pairs, out=tmp_path / "cut", **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_adapter_is_the_tuned_model_in_a_few_factors(
    base: Path, pairs: Path, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassgpt.train.layers.lora import Ranks

    monkeypatch.setattr("glassgpt.train.finetune.run.choose_ranks", lambda config, **of: Ranks(4, 2))
    task = lines("mine.toml", *SHORT.splitlines())
    options = {"model": str(base), "task": task, "lora": True, "minutes": 5.0}
    merged = tune(pairs, out=tmp_path / "merged", **options)  # type: ignore[arg-type]
    small = tune(pairs, out=tmp_path / "small", adapter=True, **options)  # type: ignore[arg-type]
    assert merged.improved
    assert small.best_step == merged.best_step
    one, other = load_checkpoint(tmp_path / "merged"), load_checkpoint(tmp_path / "small")
    assert other.format == "adapter"
    assert one.config == other.config
    assert one.tokenizer is not None
    assert other.tokenizer is not None
    assert one.tokenizer.hash == other.tokenizer.hash
    for name in one.tensors:
        # The factors are stored in float16: 2**-11 of each; their product is small compared with the matrix.
        assert np.abs(one.tensors[name] - other.tensors[name]).max() < 2e-3, name
    sizes = [(tmp_path / name / file).stat().st_size for name, file in
             (("small", "adapter.safetensors"), ("merged", "model.safetensors"))]  # fmt: skip
    assert sizes[0] < sizes[1] / 4
    assert package.load(tmp_path / "small").task is not None


def test_what_does_not_go_together(base: Path, pairs: Path, lines: Lines, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Add --lora"):
        tune(pairs, model=str(base), task="en-fr", adapter=True, out=tmp_path / "out")
    with pytest.raises(SettingError, match="no place for the head"):
        tune(pairs, model=str(base), task="sentiment", adapter=True, lora=True, out=tmp_path / "out")
    with pytest.raises(SettingError, match=r"no task 'none\.toml'"):
        tune(pairs, model=str(base), task="none.toml", out=tmp_path / "out")
    with pytest.raises(SettingError, match=r"0 of 2 records can be used.*'document' and 'summary'"):
        tune(
            lines("few.jsonl", "{}", '{"document": "x"}'),
            model=str(base),
            task="summarize",
            out=tmp_path / "o",
        )
    assert check_adapter(False, False, None) is None
    assert Problems().summary(0) is None
