"""Paths on the command line: impossible ones are one-line errors, and only our own files are replaced."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from glassgpt.cli import COMMANDS
from glassgpt.cli.parser.parse import load_command
from glassgpt.cli.parser.paths import PATH_METAVARS
from glassgpt.files import atomic_write
from tests.conftest import SHIPPED

EMPTY = {
    "train --out": ["train", "--out", "", "--data", "x", "--steps", "1"],
    "train --data": ["train", "--out", "x", "--data", "", "--steps", "1"],
    "train --init-from": ["train", "--out", "x", "--data", "y", "--steps", "1", "--init-from", ""],
    "prepare FILE": ["prepare", "", "-o", "x"],
    "prepare FILE, the second": ["prepare", "x", "", "-o", "y"],
    "prepare --out": ["prepare", "x", "-o", ""],
    "prepare --tokenizer": ["prepare", "x", "-o", "y", "--tokenizer", ""],
    "tune FILE": ["tune", ""],
    "tune --model": ["tune", "x", "--model", ""],
    "tune --out": ["tune", "x", "-o", ""],
    "convert SRC": ["convert", "", "x"],
    "convert DST": ["convert", SHIPPED, ""],
    "info MODEL": ["info", ""],
    "verify MODEL": ["verify", ""],
    "eval MODEL": ["eval", SHIPPED, ""],
    "eval --data": ["eval", SHIPPED, "--data", ""],
    "eval --cache": ["eval", SHIPPED, "--cache", " "],
    "generate --model": ["generate", "Hi", "--model", ""],
    "next --model": ["next", "Hi", "--model", ""],
    "tokens --model": ["tokens", "Hi", "--model", ""],
    "explore --model": ["explore", "--model", ""],
    "course --to": ["course", "1", "--to", ""],
    "explore --compare": ["explore", "--compare", ""],
}


@pytest.fixture(autouse=True)
def _in_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "notes.txt").write_text("mine, and only mine. " * 50)
    monkeypatch.chdir(tmp_path / "here")


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_path_is_an_error(glassgpt, name):
    option = name.split(",")[0].split()[-1]
    assert glassgpt(*EMPTY[name]).is_one_line_error(f"{option} is empty; is a shell variable unset?")
    assert os.listdir() == ["notes.txt"]


def test_every_path_option_is_checked():
    """Every option that is named like a path has one of the metavars that are checked."""
    import typing

    paths = {
        "out",
        "data",
        "model",
        "models",
        "start",
        "compare",
        "cache",
        "files",
        "src",
        "dst",
        "tokenizer",
    }
    for command in COMMANDS:
        for name, hint in typing.get_type_hints(load_command(command), include_extras=True).items():
            if name in paths:
                displayed = {getattr(note, "metavar", None) for note in hint.__metadata__}
                assert displayed & PATH_METAVARS, (command, name)


WRONG = {
    "unknown user": ("~nosuchuser/x", "there is no user nosuchuser"),
    "zero byte": ("a\0b", "contains a null byte"),
    "too long": ("x" * 300, "is too long"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    "words",
    [
        ["info"],
        ["convert", SHIPPED],
        ["prepare", "notes.txt", "-o"],
        ["train", "--steps", "1", "--data", "x", "--out"],
    ],
    ids=lambda words: words[0],
)
def test_impossible_paths_are_one_line(glassgpt, words, name):
    value, message = WRONG[name]
    assert glassgpt(*words, value).is_one_line_error(message)
    assert os.listdir() == ["notes.txt"]


def test_a_tilde_the_shell_did_not_expand(glassgpt, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert glassgpt("convert", SHIPPED, "~/model").code == 0
    assert (tmp_path / "model" / "config.json").is_file()
    assert os.listdir() == ["notes.txt"]


WRITERS = {
    "convert": ["convert", SHIPPED],
    "prepare": ["prepare", "notes.txt", "--tokenizer", "bytes", "-o"],
    "tune": ["tune", "notes.txt", "--model", SHIPPED, "-o"],
    "train": ["train", "--data", "shards", "--steps", "1", "--out"],
}


@pytest.mark.parametrize("verb", WRITERS)
@pytest.mark.parametrize("target", ["/dev/full", "/", ".", "..", "notes.txt/x", "notes.txt", "other"])
def test_foreign_files_are_never_replaced(glassgpt, verb, target):
    Path("other").mkdir()
    Path("other", "diary.md").write_text("mine")
    for force in [[], ["--force"]]:
        if force and (verb == "train" or (verb, target) in {("convert", "notes.txt"), ("tune", "notes.txt")}):
            continue  # train has no --force; there it means to replace the file
        assert glassgpt(*WRITERS[verb], target, *force).is_one_line_error()
    assert sorted(path.name for path in Path().rglob("*")) == ["diary.md", "notes.txt", "other"]
    assert not Path("/dev/full").is_file()


def test_a_device_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="a device or a pipe"), atomic_write(tmp_path / "pipe"):
        pass
    assert [path.name for path in tmp_path.iterdir() if path.name != "here"] == ["pipe"]


def test_the_source_is_never_replaced(glassgpt, tiny):
    shutil.copytree(tiny, "model")
    before = {file.name: file.read_bytes() for file in Path("model").iterdir()}
    for target in ("model", "../here/model", "model/model.safetensors"):
        assert glassgpt("convert", "model", target, "--force").is_one_line_error("source", "another target")
    assert glassgpt("tune", "notes.txt", "--model", "model", "-o", "model", "--force").is_one_line_error(
        "source"
    )
    assert {file.name: file.read_bytes() for file in Path("model").iterdir()} == before

    assert glassgpt("prepare", "notes.txt", "-o", "shards", "--tokenizer", "bytes").code == 0
    shard = next(Path("shards").glob("train-*.bin"))
    inside = glassgpt("prepare", shard, "-o", "shards", "--tokenizer", "bytes", "--force")
    assert inside.is_one_line_error("shards is or contains the source")
    assert shard.is_file()


def test_foreign_folders_with_temporary_names_stay(glassgpt):
    for name in ("shards.part", "shards.old"):
        Path(name).mkdir()
        Path(name, "diary.md").write_text("mine")
    words = ["prepare", "notes.txt", "-o", "shards", "--tokenizer", "bytes"]
    assert glassgpt(*words).is_one_line_error("shards.part exists and was not made by prepare")
    Path("shards.part").rename("moved")
    assert glassgpt(*words).code == glassgpt(*words, "--force").code == 0
    assert Path("shards.old", "diary.md").read_text() == "mine"


def test_tune_replaces_a_tuned_model_only_with_force(glassgpt, tiny):
    shutil.copytree(tiny, "notes-tuned")
    words = ["tune", "notes.txt", "--model", tiny, "--dry-run"]
    assert glassgpt(*words).is_one_line_error("notes-tuned already exists", "--force")
    assert glassgpt(*words, "--force").code == 0


PREPARE = ["prepare", "notes.txt", "-o", "shards", "--tokenizer", "bytes", "--workers", "1"]


def test_the_target_of_a_link_is_replaced_and_the_link_stays(glassgpt):
    prepare = [*PREPARE[:3], "link", *PREPARE[4:]]
    Path("elsewhere").mkdir()
    Path("link").symlink_to("elsewhere")
    assert glassgpt(*prepare).code == 0
    first = Path("elsewhere/shards.json").read_bytes()
    Path("notes.txt").write_text("others, and longer. " * 80)
    assert glassgpt(*prepare, "--force").code == 0
    assert Path("link").is_symlink()
    assert Path("elsewhere/shards.json").read_bytes() != first
    assert sorted(os.listdir()) == ["elsewhere", "link", "notes.txt"]


def test_an_existing_tokenizer_is_not_replaced(glassgpt):
    Path("mine").mkdir()
    theirs = '{"model": {"type": "WordPiece", "vocab": {"a": 0}}}'
    Path("mine/tokenizer.json").write_text(theirs)
    done = glassgpt("convert", SHIPPED, "mine/tiny.bin", "--format", "llmc")
    assert done.code == 0
    assert "move the file to its own folder" in done.out + done.err
    assert Path("mine/tokenizer.json").read_text() == theirs


def test_prepare_works_without_file_locks(glassgpt, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    assert (
        glassgpt("prepare", "notes.txt", "-o", "shards", "--tokenizer", "bytes", "--workers", "1").code == 0
    )
    assert Path("shards/shards.json").is_file()


def test_a_folder_of_hidden_files_counts_as_empty(glassgpt):
    assert (
        glassgpt("prepare", "notes.txt", "-o", "shards", "--tokenizer", "bytes", "--workers", "1").code == 0
    )
    Path("run").mkdir()
    Path("run/.DS_Store").write_text("")
    size = ["--shape", "1x16x2", "--context", "16", "--batch-size", "2", "--eval-batches", "1"]
    assert glassgpt("train", "--data", "shards", "--out", "run", "--steps", "1", *size, "--dry-run").code == 0
