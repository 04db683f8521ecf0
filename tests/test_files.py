"""Writes are all or nothing, leftovers of a kill are recognised, and reads are bounded."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from glassgpt import files
from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.files import (
    atomic_symlink,
    atomic_write,
    check_target,
    find_interrupted_writes,
    lock_folder,
    read_bytes,
    read_json,
    wrap_write_errors,
    write_text_files,
)
from glassgpt.files.lock import is_locked, lock_path


def test_what_a_kill_leaves_is_known_by_its_name(tmp_path: Path) -> None:
    for name in (".config.json.0a1b2c3d.part", ".step-4.01234567.old", ".tokenizer.json.abcd0f12.part"):
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

    monkeypatch.setattr(files.write.os, "fsync", fsync)
    monkeypatch.setattr(files.write.os, "replace", renamed)
    with atomic_write(tmp_path / "new" / "folder", folder=True) as part:
        (part / "file").write_text("x")
    assert events == ["file", "part", "rename", "new", tmp_path.name]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        lock_folder(tmp_path, "train"),
        pytest.raises(SettingError, match="another glassgpt train is running in"),
        lock_folder(tmp_path, "train"),
    ):
        pass
    with lock_folder(tmp_path, "train"):
        pass


@pytest.mark.skipif(os.name == "nt", reason="no fcntl on Windows")
def test_without_flock_as_in_a_browser_nothing_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("fcntl.flock")
    with lock_folder(tmp_path, "train"), lock_folder(tmp_path, "train"), lock_path(tmp_path):
        assert not is_locked(tmp_path)
    with atomic_write(tmp_path / "a.txt") as part:
        part.write_text("a")
    assert (tmp_path / "a.txt").read_text() == "a"
    assert find_interrupted_writes(tmp_path) == []


def test_a_refusal_of_the_system_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="log: the disk is full"), wrap_write_errors(tmp_path / "log"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_text_files_are_written_together(tmp_path: Path) -> None:
    """The second cannot be written: the first, already there, keeps its old contents."""
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(UserError, match="cannot write"):
        write_text_files(tmp_path, {"a.txt": "new", "a.txt/b.txt": "new"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"
    write_text_files(tmp_path / "new", {"a.txt": "a\r\n", "b.txt": "b"})
    assert (tmp_path / "new" / "a.txt").read_bytes() == b"a\r\n"


def test_a_link_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("x")
    (tmp_path / "name").write_text("old")
    atomic_symlink(tmp_path / "name", tmp_path / "blob")
    assert (tmp_path / "name").read_text() == "x"
    assert find_interrupted_writes(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "contains a JSON list, not an object"),
        (b"\xff\xfe{\0}\0", "is not UTF-8 text"),
        (b" " * 101, "has 101 bytes; at most 100"),
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        read_json(tmp_path / "a.json", limit=100 if content.isspace() else 2**20)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "bom.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(tmp_path / "bom.json") == {"a": 1}
    for path in (tmp_path, tmp_path / "missing", Path("/dev/zero")):
        with pytest.raises(FileFormatError, match=r"not a (regular )?file"):
            read_bytes(path)


@pytest.mark.parametrize("name", ["loop", "loop/inside"])
def test_a_link_to_itself_is_no_target(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SettingError, match="is a symbolic link to itself"):
        check_target(tmp_path / name)
    with pytest.raises(SettingError, match="is a symbolic link to itself"):
        check_target(tmp_path / "new", [tmp_path / name])
