"""Building the engine: with another compiler, and without one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from glassgpt.backends.native import build, library, threads
from glassgpt.errors import SettingError


def test_without_a_compiler_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="there is no C\\+\\+ compiler"):
        build.build(tmp_path / "engine.so")


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "false"])
def test_a_compiler_that_fails_leaves_nothing(compiler: str, tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"cannot be run|failed"):
        build.build(tmp_path / "engine.so", compiler=[compiler])
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("true") is None, reason="there is no program of that name here: Windows")
def test_a_program_that_is_no_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`CXX=true` succeeds at everything and writes nothing."""
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(build.BuildError, match=r"'true' wrote no library\. Name a C\+\+ compiler in CXX"):
        build.build(tmp_path / "engine.so")
    assert not list(tmp_path.iterdir())


def test_a_library_that_is_none_or_older_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library.load_library.cache_clear()
    try:
        monkeypatch.setenv("GLASSGPT_NATIVE", str(tmp_path / "none.so"))
        with pytest.raises(library.NotBuilt, match="which is not a file"):
            library.load_library()
        (tmp_path / "none.so").write_bytes(b"not a library")
        with pytest.raises(library.NotBuilt, match="cannot be loaded"):
            library.load_library()
        monkeypatch.delenv("GLASSGPT_NATIVE")
        if build.LIBRARY.exists():
            monkeypatch.setattr(build, "source_hash", lambda: "of other sources")
            with pytest.raises(library.NotBuilt, match="older than its sources"):
                library.load_library()
    finally:
        library.load_library.cache_clear()


def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.thread_count() == 3
    monkeypatch.setenv(threads.VARIABLE, "5")
    assert threads.thread_count() == 5
    monkeypatch.setenv(threads.VARIABLE, "many")
    with pytest.raises(SettingError, match="GLASSGPT_THREADS is 'many'"):
        threads.thread_count()
    for name in (threads.VARIABLE, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "9" * 5000)  # more digits than int() reads
        with pytest.raises(SettingError, match="give a whole number from 1 to 1024"):
            threads.thread_count()
    monkeypatch.delenv(threads.VARIABLE)
    assert 1 <= threads.thread_count() <= threads.MOST
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= threads.thread_count() <= threads.MOST
