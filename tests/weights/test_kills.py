"""kill -9 before every change to the folder while one thing replaces another: one of the two is there, whole,
and the next command that writes there leaves nothing else behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glassgpt.files import atomic_write, find_interrupted_writes, recover_interrupted_write
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train.data.prepare import prepare
from glassgpt.train.data.shards import Shards
from glassgpt.weights import convert, load_checkpoint, save_checkpoint
from tests.weights.conftest import random_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs forks")

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}


def killed_at(change: int, work: Callable[[], object]) -> bool:
    """Do the work in a fork that is killed just before that change on the disk; whether it came so far."""
    child = os.fork()
    if child == 0:
        gc.freeze()  # what other tests left behind is not ours to finalize: its threads are not here
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


def assert_one_is_always_there(
    out: Path, begin: Callable[[], object], replace: Callable[[], object], which: Callable[[], str], gap: bool
) -> int:
    """The number of changes. With `gap` a kill may fall between two renames, which the recovery undoes."""
    change = 0
    while True:
        change += 1
        begin()
        beside = set(os.listdir(out.parent))
        alive = not killed_at(change, replace)
        if not gap:
            assert which() in ("old", "new"), change
        recover_interrupted_write(out)
        assert which() in (("new",) if alive else ("old", "new")), change
        replace()
        assert which() == "new"
        assert set(os.listdir(out.parent)) == beside
        if alive:
            return change


@pytest.fixture(params=["exchange", "two renames"])
def gap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "two renames":  # what disks and systems need that cannot exchange
        monkeypatch.setattr("glassgpt.files.write._exchange", lambda one, other: False)
    return request.param == "two renames"


def test_convert_by_force(tmp_path: Path, gap: bool) -> None:
    models = {name: random_checkpoint(seed=seed) for seed, name in enumerate(("old", "new"))}
    out = tmp_path / "out"
    save_checkpoint(models["new"], tmp_path / "source")

    def which() -> str:
        found = load_checkpoint(out).tensors["wte.weight"]
        return next(name for name in models if (models[name].tensors["wte.weight"] == found).all())

    changes = assert_one_is_always_there(
        out,
        lambda: save_checkpoint(models["old"], out),
        lambda: convert(tmp_path / "source", out, force=True),
        which,
        gap,
    )
    assert changes > 8


@pytest.mark.slow
def test_prepare_by_force(tmp_path: Path, gap: bool) -> None:
    for name in ("old", "new"):
        (tmp_path / f"{name}.txt").write_text(f"{name} text\n\n" * 5)

    def work(name: str) -> None:
        text = tmp_path / f"{name}.txt"
        prepare([text], tmp_path / "out", ByteTokenizer(), val_fraction=0, workers=1, force=True)

    def which() -> str:
        return ByteTokenizer().decode(list(Shards.open(tmp_path / "out").read(1, 3)))

    changes = assert_one_is_always_there(
        tmp_path / "out", lambda: work("old"), lambda: work("new"), which, gap
    )
    assert changes > 15


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.0a1b2c3d.part").touch()
    with atomic_write(tmp_path / "a.txt") as part:
        part.write_text("new")
        recover_interrupted_write(tmp_path / "a.txt")
        assert find_interrupted_writes(tmp_path) == [("a.txt", part)]
    assert os.listdir(tmp_path) == ["a.txt"]
