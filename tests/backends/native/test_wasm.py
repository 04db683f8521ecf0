"""The committed WebAssembly module is that of the sources; `make wasm` makes it again, byte for byte."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from glassgpt.backends.native import build, wasm

LARGEST = 400_000  # bytes that are worth committing


def test_the_module_is_of_these_sources() -> None:
    content = wasm.TARGET.read_bytes()
    assert len(content) < LARGEST
    assert build.source_hash().encode() in content, "native/cpp has changed: make wasm, and commit the file"
    assert not re.search(rb"/(?:home|work|root|tmp)/", content), "a path of some machine"


@pytest.mark.slow
def test_the_same_compiler_makes_the_same_file(tmp_path: Path) -> None:
    if shutil.which("emcc") is None:
        pytest.skip("no emscripten here: apt-get install emscripten")
    made = wasm.build_wasm(tmp_path / "glassgpt.wasm")
    assert made.read_bytes() == wasm.TARGET.read_bytes()


def test_another_compiler_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "emcc"
    fake.write_text("#!/bin/sh\necho 'emcc (Emscripten) 4.0.1'\n")
    fake.chmod(0o755)
    with pytest.raises(build.BuildError, match=r"version 4\.0\.1, not 3\.1\.6"):
        wasm.check_compiler(str(fake))
    with pytest.raises(build.BuildError, match="Install it: apt-get install emscripten"):
        wasm.check_compiler(str(tmp_path / "none"))
