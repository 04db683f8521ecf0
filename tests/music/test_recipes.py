"""The recipes of music in miniature: from archives to shards, a trained model, damaged files."""

from __future__ import annotations

import json
import runpy
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import mido
import numpy as np
import pytest

import glassgpt

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "music"
Script = Callable[..., None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Script:
    """`run("train.py", ...)` in this process: importing torch again takes longer."""
    monkeypatch.syspath_prepend(RECIPES)  # as for a program that is started

    def call(name: str, *args: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        runpy.run_path(str(RECIPES / name), run_name="__main__")

    return call


def write_song(path: Path, seed: int, notes: int = 60) -> None:
    """A melody and a piano, as in POP909, with eight notes a second each."""
    rng = np.random.default_rng(seed)
    tracks = []
    for name, low in ("MELODY", 60), ("PIANO", 40):
        track = mido.MidiTrack([mido.MetaMessage("track_name", name=name)])
        for pitch in rng.integers(low, low + 20, notes).tolist():
            track.append(mido.Message("note_on", note=pitch, velocity=80, time=20))
            track.append(mido.Message("note_off", note=pitch, time=100))
        tracks.append(track)
    path.parent.mkdir(parents=True, exist_ok=True)
    mido.MidiFile(type=1, tracks=tracks).save(path)


@pytest.mark.slow
def test_from_an_archive_to_a_model(
    run: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassgpt.train.trainer.Trainer.estimate_needs", lambda trainer: None)
    songs = tmp_path / "POP909"
    for number in range(5):
        write_song(songs / f"{number:03}" / f"{number:03}.mid", number)
    with tarfile.open(tmp_path / "pop909.tar.xz", "w:xz") as archive:
        archive.add(songs, "POP909")
    run("prepare.py", tmp_path, "-o", tmp_path / "shards", "--only", "pop909", "jsb")
    assert "jsb-chorales-16th.json.xz is not there" in capsys.readouterr().out
    small = ("shape=1x16x1", "context=32", "batch_size=2", "eval_every=20", "save_every=20")
    changes = [word for change in (*small, "relative_distance=8") for word in ("--set", change)]
    out = tmp_path / "out"
    run(
        "train.py", "pop909", "--attention", "relative", "--minutes", 0.02, "--device", "cpu", "--no-compile",
        "--data", tmp_path / "shards" / "pop909", "--run", tmp_path / "runs", "--out", out, *changes,
    )  # fmt: skip
    result = json.loads((out / "pop909-relative.json").read_text())
    assert result["constant_steps"] > 0
    assert 0 < result["val_nll_stride_32"] < 7  # log 391 is 5.97
    gpt = glassgpt.load(out / "pop909-relative-int8", device="cpu")
    assert (gpt.config.attention, gpt.config.relative_distance) == ("relative", 8)
    capsys.readouterr()
    run("mutate.py", songs, "--count", 40)
    found = json.loads(capsys.readouterr().out)
    assert found["read"] + found["refused"] == 40
    run("round_trip.py", songs)
    assert json.loads(capsys.readouterr().out)["notes"] == 600
    run("chart.py", out / "pop909-relative.json", "-o", tmp_path / "curves.svg")
    assert "POP909" in (tmp_path / "curves.svg").read_text()

    check_evaluation(run, out / "pop909-relative-int8", tmp_path)


def check_evaluation(run: Script, model: Path, folder: Path) -> None:
    """Its music beside that of people."""
    for number in range(40):  # of which a tenth are held out
        write_song(folder / "songs" / f"{number:03}.mid", number, notes=560)
    out = folder / "evaluation"
    run("evaluate.py", "--model", model, "--songs", folder / "songs", "--out", out, "--samples", 2)
    result = json.loads((out / "results.json").read_text())
    assert list(result["sets"]) == ["samples", "held-out songs", "training songs", "random notes"]
    assert result["sets"]["training songs"]["longest copy, seconds"] > 10  # they are in what was learned
    assert result["sets"]["random notes"]["longest copy, seconds"] < 2
    assert all(row["primer kept"] for row in result["continuations"])
    assert len(list(out.glob("sample-*.mid"))) == 2
    assert (out / "sample.svg").read_text().count("<") > 100
