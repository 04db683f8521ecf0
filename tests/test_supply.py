"""What comes from elsewhere: pinned, named with its licence, and installed as root only after saying so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest
from docs.licences import closure, npm_tools

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "package-lock.json"

METADATA = {
    "ours": ["License-Expression: MIT", "Requires-Dist: plain[more]>=1", 'Requires-Dist: gone; extra == "x"'],
    "plain": [
        "License: BSD\n  and more",
        'Requires-Dist: old; extra == "more"',
        'Requires-Dist: nt; os_name == "?"',
    ],
    "old": ["License: UNKNOWN", "Classifier: License :: OSI Approved :: Apache Software License"],
    "silent": [],
}


@pytest.fixture
def installed(tmp_path: Path):
    for name, lines in METADATA.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        text = "\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *lines])
        (folder / "METADATA").write_text(text + "\n")

    def find(name: str) -> Distribution:
        if name not in METADATA:
            raise PackageNotFoundError(name)
        return Distribution.at(tmp_path / f"{name}-1.0.dist-info")

    return find


def test_licences_of_all_that_a_package_needs(installed) -> None:
    assert closure("ours", [], installed) == [
        ("old", "1.0", "Apache Software License"),
        ("ours", "1.0", "MIT"),
        ("plain", "1.0", "BSD"),
    ]
    assert ("gone", "not installed", "") in closure("ours", ["x"], installed)
    assert closure("silent", [], installed) == [("silent", "1.0", "not stated")]


def test_our_own_dependencies_state_their_licences() -> None:
    found = {package.name: package.licence for package in closure("glassgpt", ["torch", "serve"])}
    assert {"numpy", "safetensors", "torch", "fastapi", "starlette"} <= set(found)
    assert found["fastapi"] == "MIT"
    assert found["glassgpt"] == "MIT"


def test_the_npm_tools_are_locked_by_hash_and_name_no_registry() -> None:
    wanted = json.loads((ROOT / "package.json").read_text("utf-8"))["devDependencies"]
    packages = json.loads(LOCK.read_text("utf-8"))["packages"]
    assert packages.pop("")["devDependencies"] == wanted
    for name, facts in packages.items():
        assert facts["integrity"].startswith("sha512-"), name
        assert "resolved" not in facts, name
    assert {(tool.name, tool.version) for tool in npm_tools(LOCK)} >= set(wanted.items())
    assert all(tool.licence != "not stated" for tool in npm_tools(LOCK))


@pytest.mark.skipif(shutil.which("make") is None or sys.platform == "win32", reason="no make here")
@pytest.mark.parametrize("allowed", [True, False])
def test_make_says_what_it_installs_as_root_and_can_be_told_not_to(tmp_path: Path, allowed: bool) -> None:
    """A machine with apt-get, without a browser; we are root."""
    for name, does in {"apt-get": f'echo "$@" >> {tmp_path}/asked', "id": "echo 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "timeout").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "timeout").chmod(0o755)
    command = [shutil.which("make"), "chromium", *([] if allowed else ["CHROMIUM=no"])]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "asked").exists() == allowed
    if allowed:
        assert "chromium with apt-get, as root" in done.stdout
        assert "CHROMIUM=no" in done.stdout
        assert (tmp_path / "asked").read_text() == "install -y -qq chromium\n"
    else:
        assert "SKIPPED" in done.stdout
