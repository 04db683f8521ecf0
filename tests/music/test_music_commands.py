"""`glassgpt music ...`: what is written, what is said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import mido
import numpy as np
import pytest
import torch

from glassgpt.cli import main
from glassgpt.cli.commands import music
from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.music.generate import InterruptedMusic, MusicSample
from glassgpt.music.midi import read_midi, write_midi
from glassgpt.tokenizer import EventTokenizer
from glassgpt.weights import Checkpoint, save_checkpoint
from tests.music.test_prepare import piece


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing, in a folder."""
    torch.manual_seed(0)
    tokenizer = EventTokenizer(melody=True)
    config = Config(n_layer=1, n_embd=16, n_head=2, vocab_size=tokenizer.vocab_size, n_positions=128,
                    bos_token_id=388, eos_token_id=388)  # fmt: skip
    tensors = {name: value.numpy() for name, value in GPT2(config).state_dict().items()}
    folder = tmp_path_factory.mktemp("model") / "m"
    save_checkpoint(Checkpoint(config, tensors, tokenizer), folder)
    return folder


def call(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main([str(word) for word in words])
    return code, *capfd.readouterr()


def test_takes_are_written_as_midi_that_others_read(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "training").mkdir()
    write_midi(piece(1), tmp_path / "training" / "a.mid")
    code, out, err = call(
        capfd, "music", "sample", "-o", tmp_path / "a.mid", "--seconds", 2.5, "--samples", 2, "--seed", 1,
        "--model", model, "--training", tmp_path / "training", "--json",
    )  # fmt: skip
    assert code == 0, err
    for number, line in enumerate(out.splitlines(), start=1):
        facts = json.loads(line)
        path = tmp_path / f"a-{number}.mid"
        assert facts["file"] == str(path)
        assert mido.MidiFile(path).length == pytest.approx(2.5)
        assert facts["notes"] == len(read_midi(path))
        assert facts["copied_notes"] < facts["notes"]
    assert number == 2


def test_the_file_is_read_by_a_second_library(model: Path, tmp_path: Path) -> None:
    symusic = pytest.importorskip("symusic", reason="symusic is not installed")
    main(
        [
            "music",
            "sample",
            "-o",
            str(tmp_path / "a.mid"),
            "--seconds",
            "2",
            "--seed",
            "1",
            "--model",
            str(model),
        ]
    )
    score = symusic.Score(tmp_path / "a.mid", ttype="second")
    assert sum(len(track.notes) for track in score.tracks) == len(read_midi(tmp_path / "a.mid"))


def test_continue_accompany_and_roll(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    song = piece(2, 60)
    write_midi(song, tmp_path / "song.mid")
    song = read_midi(tmp_path / "song.mid")
    common = ("--seed", 1, "--model", model)
    code, _, err = call(
        capfd, "music", "continue", tmp_path / "song.mid", "-o", tmp_path / "b.mid", "--cut", 4,
        "--seconds", 1, *common,
    )  # fmt: skip
    assert code == 0, err
    made = read_midi(tmp_path / "b.mid")
    before = made.start < 3.99
    assert np.allclose(made.start[before], song.start[song.start < 3.99], atol=2e-3)
    assert "5.00 s" in err
    assert "silence" not in err
    code, _, err = call(
        capfd, "music", "continue", tmp_path / "song.mid", "-o", tmp_path / "late.mid", "--cut", 100,
        "--seconds", 1, *common,
    )  # fmt: skip
    assert code == 0, err
    assert f"song.mid ends at {song.seconds:.2f} s; silence follows until --cut 100" in err

    code, _, err = call(
        capfd,
        "music",
        "accompany",
        tmp_path / "song.mid",
        "-o",
        tmp_path / "c.mid",
        "--without-melody",
        *common,
    )
    assert code == 0, err
    assert len(read_midi(tmp_path / "c.mid"))

    code, _, err = call(
        capfd, "music", "roll", tmp_path / "b.mid", "-o", tmp_path / "b.svg", "--attention", "--event", 9,
        "--layer", 0, "--head", 1, "--model", model,
    )  # fmt: skip
    assert code == 0, err
    picture = (tmp_path / "b.svg").read_text()
    assert picture.count("<path") == 5
    assert "head 1" in picture
    assert "head 0" not in picture


def test_ctrl_c_writes_what_there_is_and_says_what_is_missing(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    song = piece(2, 60)
    write_midi(song, tmp_path / "song.mid")
    part = MusicSample(piece(3).crop(0, 1), 1.0, [1], seed=7, notes=["interrupted after 1.0 of 9.0 s"])

    def interrupt(*args: object, **options: object) -> None:
        raise InterruptedMusic([part])

    monkeypatch.setattr("glassgpt.music.generate.accompany", interrupt)
    words = ("accompany", tmp_path / "song.mid", "-o", tmp_path / "a.mid", "--samples", 3, "--model", model)
    code, _, err = call(capfd, "music", *words)
    assert code == 130
    assert mido.MidiFile(tmp_path / "a-1.mid").length == pytest.approx(1.0, abs=0.01)
    assert len(read_midi(tmp_path / "a-1.mid")) == len(part.performance) + len(song.crop(0, 1))
    lines = err.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'a-1.mid'}: 1.00 s")
    assert lines[1:3] == [
        "note: interrupted after 1.0 of 9.0 s",
        "interrupted; 2 of 3 samples had not begun",
    ]


def test_prepare_train_split_and_evaluate(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        write_midi(piece(number), tmp_path / f"{number}.mid")
    (tmp_path / "x.mid").write_bytes(b"no")
    code, out, err = call(capfd, "music", "prepare", tmp_path, "-o", tmp_path / "shards", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert sum(split["documents"] for split in summary["splits"].values()) == 3
    assert summary["skipped"] == 1
    assert "left out" in err
    assert "x.mid" in err
    code, out, err = call(
        capfd, "music", "evaluate", model, "--data", tmp_path / "shards", "--split", "train", "--json"
    )
    assert code == 0, err
    assert 5.5 < json.loads(out)["nll"] < 6.5  # log 391 is 5.97


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sample", "-o", "a.wav"), "must end in .mid"),
        (("sample",), "-o is missing"),
        (("smaple",), "'smaple' is not one of sample"),
        (("sample", "-o", "a.mid", "--top-p", "7"), "top_p is 7"),
        (("sample", "-o", "a.mid", "--model", "tiny"), "not a model of piano performances"),
        (("continue", "none.mid", "-o", "a.mid"), "none.mid does not exist"),
        (("render", "none.mid", "-o", "b.wav"), "none.mid does not exist"),
        (("continue", "song.mid", "-o", "./song.mid"), "would replace the input song.mid"),
        (("accompany", "song.mid", "-o", "song.mid"), "would replace the input song.mid"),
        (("continue", "a-2.mid", "-o", "a.mid", "--samples", "2"), "would replace the input a-2.mid"),
        (("continue", "song.mid", "-o", "a.mid", "--samples", "1000000000"), "from 1 to 64"),
        (("continue", "silent.mid", "-o", "a.mid"), "silent.mid has no notes"),
        (("accompany", "silent.mid", "-o", "a.mid"), "silent.mid has no notes"),
        (("render", "silent.mid", "-o", "b.wav"), "silent.mid has no notes"),
        (("roll", "silent.mid", "-o", "b.svg"), "silent.mid has no notes"),
        (("roll", "song.mid", "-o", "b.svg", "--seconds", "0"), "seconds is 0.0; write a number from 0.01"),
        (("roll", "song.mid", "-o", "a.svg", "--layer", "-1"), "Add --attention"),
        (("roll", "song.mid", "-o", "a.svg", "--head", "1"), "Add --attention"),
        (("accompany", "song.mid", "-o", "a.mid", "--track", "X"), "Its tracks have no names"),
        (("sample", "-o", "song.mid"), "song.mid exists. Choose another file, or add --force"),
        (("sample", "-o", "a.mid", "--samples", "2"), "a-2.mid exists"),
        (("continue", "song.mid", "-o", "a-2.mid"), "a-2.mid exists"),
        (("accompany", "song.mid", "-o", "a-2.mid"), "a-2.mid exists"),
        (("render", "song.mid", "-o", "a.wav"), "a.wav exists"),
        (("render", "song.mid", "-o", "song.mid", "--force"), "would replace the input song.mid"),
        (("roll", "song.mid", "-o", "a.svg"), "a.svg exists"),
        (("roll", "song.mid", "-o", "b.jpg"), "must end in .svg or .png"),
        (("sample", "-o", "folder.mid", "--force"), "folder.mid is a folder. Name a file in it"),
        (("prepare", "-o", "x"), "FILE... is missing"),
        (("prepare", "none", "-o", "x"), "none does not exist"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...],
    said: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_midi(piece(1, 5, 2.0), tmp_path / "song.mid")
    write_midi(piece(1, 5, 2.0), tmp_path / "a-2.mid")
    write_midi(piece(1, 0, 2.0), tmp_path / "silent.mid")
    (tmp_path / "a.wav").write_bytes(b"mine")
    (tmp_path / "a.svg").write_bytes(b"mine")
    (tmp_path / "folder.mid").mkdir()
    before = contents(tmp_path)
    code, out, err = call(capfd, "music", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_existing_file_is_refused_before_the_work_and_replaced_with_force(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.mid"
    out.write_bytes(b"mine")
    words = ("music", "sample", "-o", out, "--seconds", 1, "--model", model)
    loaded: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(music.shared, "load", lambda *args: loaded.append(args))
        assert call(capfd, *words)[0] == 2
    assert (loaded, out.read_bytes()) == ([], b"mine")
    assert call(capfd, *words, "--force")[0] == 0
    assert read_midi(out).seconds <= 1


def test_every_action_has_help(capfd: pytest.CaptureFixture[str]) -> None:
    from glassgpt.cli.commands.music import SUBCOMMANDS, Action

    assert set(SUBCOMMANDS) == set(Action.__args__)
    for name, (_, entry) in SUBCOMMANDS.items():
        code, out, _ = call(capfd, "music", name, "--help")
        assert code == 0
        assert out.startswith(f"usage: glassgpt music {name}")
        assert all(example in out for example in entry.examples)


def test_render_says_who_played(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_midi(piece(1, 5, 2.0), tmp_path / "a.mid")
    code, _, err = call(
        capfd, "music", "render", tmp_path / "a.mid", "-o", tmp_path / "a.wav", "--synthesizer", "builtin"
    )
    assert code == 0
    assert "played by builtin" in err
    assert (tmp_path / "a.wav").read_bytes()[:4] == b"RIFF"
    assert len((tmp_path / "a.wav").read_bytes()) > 88_200
