"""`glassgpt.evaluate(...)`: the metrics of the command, from Python."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

import glassgpt
from glassgpt.errors import UserError
from tests.evaluate import texts


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def test_the_function_returns_what_the_command_prints(evaluate, random_bytes, folder, tmp_path) -> None:
    advanced = []

    @contextmanager
    def progress(description, total=None, *, unit=""):
        yield lambda n: advanced.append((description, total, n))

    metrics = glassgpt.evaluate(
        random_bytes.folder, "lambada,text8", data=folder, any_data=True, limit=2, stride=64,
        cache=tmp_path / "scores", progress=progress,
    )  # fmt: skip
    words = ["--suite", "lambada,text8", "--data", folder, "--any-data", "--limit", "2", "--stride", "64"]
    assert metrics == json.loads(evaluate(random_bytes.folder, *words, "--json")[1])
    assert metrics["text8.bits_per_byte"]["protocol"] == ("paper: raw text, stride 64; first 2, altered data")
    scored = [step for step in advanced if step[0].startswith("scoring")]
    assert sum(n for _, _, n in scored) == scored[0][1]
    assert len(list((tmp_path / "scores").iterdir())) == 1


def test_a_file_of_ones_own(random_bytes, tmp_path) -> None:
    (tmp_path / "book.txt").write_text(texts.TEXT8)
    metrics = glassgpt.evaluate(random_bytes.folder, "bits-per-byte", data=str(tmp_path / "book.txt"))
    assert list(metrics) == ["book.bits_per_byte"]


def test_a_task_that_cannot_run_is_a_warning_and_an_error_if_none_can(random_bytes, tmp_path) -> None:
    (tmp_path / "news.en.heldout-00000-of-00050").write_text(texts.ONE_BILLION)
    with pytest.warns(UserWarning, match="ptb: not available"):
        metrics = glassgpt.evaluate(random_bytes.gpt, "ptb,1bw", data=tmp_path)
    assert list(metrics) == ["1bw.perplexity"]
    with (
        pytest.warns(UserWarning, match="ptb: not available"),
        pytest.raises(UserError, match="no task could be run"),
    ):
        glassgpt.evaluate(random_bytes.gpt, "ptb", data=tmp_path)
