"""kill -9 before every change to the folder while one thing replaces another: one of the two is there, whole,
and the next command that writes there leaves nothing else behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train.prepare import prepare
from glassgpt.train.shards import Shards
from glassgpt.weights import convert, load_checkpoint, safe, save_checkpoint
from glassgpt.weights.safe import settle, unfinished, writing
from tests.weights.conftest import random_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs forks")

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}


def killed_at(change: int, work: Callable[[], object]) -> bool:
    """Do the work in a fork that is killed just before that change on the disk; whether it came so far."""
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            opened = event == "open" and isinstance(arguments[1], str) and arguments[1][0] in "wxa"
            if opened or event in CHANGES:
                seen += 1
                if seen == change:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(watch)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), "it could not go on"
    return os.WIFSIGNALED(status)


@pytest.fixture(params=["exchange", "two renames"])
def _renaming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "two renames":  # what disks and systems do that cannot exchange
        monkeypatch.setattr(safe, "_exchange", lambda one, other: False)


@pytest.mark.usefixtures("_renaming")
def test_convert_by_force(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    old, new = random_checkpoint(seed=1), random_checkpoint(seed=2)
    save_checkpoint(new, tmp_path / "new")
    save_checkpoint(old, tmp_path / "out")
    hashes = {str(one.tensors["wte.weight"].sum()) for one in (old, new)}
    change = 0
    while killed_at(change := change + 1, lambda: convert(tmp_path / "new", tmp_path / "out", force=True)):
        if not (tmp_path / "out").exists():
            assert "exchange" not in request.node.name
            settle(tmp_path / "out")
        assert str(load_checkpoint(tmp_path / "out").tensors["wte.weight"].sum()) in hashes, change
    assert change > 8
    convert(tmp_path / "new", tmp_path / "out", force=True)
    assert sorted(os.listdir(tmp_path)) == ["new", "out"]
    assert str(load_checkpoint(tmp_path / "out").tensors["wte.weight"].sum()) == str(
        new.tensors["wte.weight"].sum()
    )


@pytest.mark.usefixtures("_renaming")
def test_prepare_by_force(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    texts = {name: tmp_path / f"{name}.txt" for name in ("old", "new")}
    for name, file in texts.items():
        file.write_text(f"this is the {name} text\n\n" * 5)

    def work(name: str = "new") -> None:
        prepare([texts[name]], tmp_path / "out", ByteTokenizer(), val_share=0, workers=1, force=True)

    def tokens() -> str:
        return ByteTokenizer().decode(list(Shards.open(tmp_path / "out").read(1, 16)))

    work("old")
    change = 0
    found = []
    while killed_at(change := change + 1, work):
        assert (tmp_path / "out").exists() or "exchange" not in request.node.name
        settle(tmp_path / "out")
        found.append(tokens())
    assert {"this is the old "} <= set(found) <= {"this is the old ", "this is the new "}
    assert change > 15
    work()
    assert tokens() == "this is the new "
    assert sorted(os.listdir(tmp_path)) == ["new.txt", "old.txt", "out"]


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.0a1b2c3d.part").touch()
    with writing(tmp_path / "a.txt") as part:
        part.write_text("new")
        settle(tmp_path / "a.txt")
        assert unfinished(tmp_path) == [("a.txt", part)]
    assert os.listdir(tmp_path) == ["a.txt"]
