"""Writing: all or nothing, and what a kill leaves is known for ours."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from glassgpt import files
from glassgpt.errors import SettingError, UserError
from glassgpt.files import atomic_write, find_interrupted_writes, lock_folder, wrap_write_errors


def test_what_a_kill_leaves_is_known_by_its_name(tmp_path: Path) -> None:
    for name in (".config.json.0a1b2c3d.part", ".step-4.01234567.old", ".tokenizer.json.ab_d0f1z.part"):
        (tmp_path / name).touch()
    for name in ("mine.part", ".hidden", ".notes.part", "config.json", ".config.json.0A1B2C3D.part"):
        (tmp_path / name).touch()
    assert [name for name, _ in find_interrupted_writes(tmp_path)] == [
        "config.json",
        "step-4",
        "tokenizer.json",
    ]
    assert find_interrupted_writes(tmp_path / "nowhere") == []


def test_what_is_being_written_has_such_a_name(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.txt") as part:
        part.write_text("new")
        assert find_interrupted_writes(tmp_path) == [("a.txt", part)]
    assert find_interrupted_writes(tmp_path) == []
    assert (tmp_path / "a.txt").read_text() == "new"


@pytest.mark.skipif(os.name == "nt", reason="Windows flushes no folders")
def test_names_are_on_the_disk_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the bytes, then the rename, then the folders that hold the new names."""
    events: list[str] = []
    flush, replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name.split(".")[-1])
        flush(handle)

    def renamed(old: Path, new: Path) -> None:
        events.append("rename")
        replace(old, new)

    monkeypatch.setattr(files.os, "fsync", fsync)
    monkeypatch.setattr(files.os, "replace", renamed)
    with atomic_write(tmp_path / "new" / "folder", folder=True) as part:
        (part / "file").write_text("x")
    assert events == ["file", "part", "rename", "new", tmp_path.name]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        lock_folder(tmp_path, "train"),
        pytest.raises(SettingError, match="another glassgpt train is at work in"),
        lock_folder(tmp_path, "train"),
    ):
        pass
    with lock_folder(tmp_path, "train"):
        pass


def test_a_refusal_of_the_system_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="log: the disk is full"), wrap_write_errors(tmp_path / "log"):
        raise OSError(errno.ENOSPC, "No space left on device")
