"""What comes from elsewhere: pinned, named with its licence, and installed as root only after saying so."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest
from docs.licences import closure, npm_tools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import glassgpt

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "package-lock.json"

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = {path.stem: path.read_text("utf-8") for path in (ROOT / "requirements").glob("*.lock")}

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


# requirements/*.lock


def pins(text: str) -> dict[str, str]:
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.M)
    return {canonicalize_name(name): version for name, version in lines}


def wanted(*extras: str) -> set[str]:
    """The names of what the package needs with these extras, directly."""
    optional = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in optional[extra])]
    found = {canonicalize_name(Requirement(line).name) for line in lines} - {"glassgpt", "torch"}
    inner = [Requirement(line).extras for line in lines if Requirement(line).name == "glassgpt"]
    return found.union(*(wanted(*sorted(extras)) for extras in inner))


def test_every_locked_file_has_its_hash() -> None:
    assert LOCKS.keys() == {
        "clients",
        "dev",
        "doors",
        "lab",
        "light",
        "lite",
        "lite-browser",
        "ray",
        "release",
    }
    for name, text in LOCKS.items():
        entries = re.split(r"\n(?=\S)", text.strip())
        assert len(entries) == len(re.findall(r"^\S+==", text, re.M)), name
        assert [one for one in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", one)] == []
        assert "://" not in text, "no index is named"


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("light", ["serve"]), ("dev", ["serve", "dev"]), ("ray", ["ray"]), ("doors", ["serve"])],
)
def test_the_locks_have_all_that_pyproject_wants_but_torch(lock: str, extras: list[str]) -> None:
    """Else pip would not notice: it installs a lock with --no-deps. `make lock` updates them."""
    locked = pins(LOCKS[lock])
    assert wanted(*extras) - locked.keys() == set()
    assert "torch" not in locked


@pytest.mark.parametrize("lock", ["light", "dev", "ray", "lab", "doors"])
def test_the_locks_have_the_versions_that_were_tested_together(lock: str) -> None:
    tested = pins((ROOT / "constraints.txt").read_text("utf-8"))
    locked = pins(LOCKS[lock])
    assert {name: locked[name] for name in locked.keys() & tested.keys()} == {
        name: tested[name] for name in locked.keys() & tested.keys()
    }
    (builder,) = (Requirement(line) for line in PROJECT["build-system"]["requires"])
    assert str(builder.specifier) == f"=={locked['hatchling']}"


def test_make_installs_with_hashes() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    assert text.count("--require-hashes -r requirements/") == 7
    assert re.search(r"^PROMPTFOO := promptfoo@\d+\.\d+\.\d+$", text, re.M)


# The package's metadata


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("hatchling", reason="hatchling is not installed: make test installs it")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_on_a_package_index_has_no_relative_links(hooks: ModuleType) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "](docs/" in text
    relative = re.compile(r"\]\((?!https?://|#)")
    absolute = hooks.with_absolute_links(text, "https://host.example/glassgpt")
    assert not relative.search(absolute)
    assert "](https://host.example/glassgpt/blob/main/docs/serve.md)" in absolute
    assert "](https://host.example/glassgpt/raw/main/docs/picture.svg)" in absolute
    without = hooks.with_absolute_links(text, "")
    assert not relative.search(without)
    assert "![" not in without
    assert ": docs/serve.md." in without


def test_metadata_comes_from_one_place(hooks: ModuleType) -> None:
    address = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    metadata: dict[str, object] = {}
    hooks.ReadmeHook(str(ROOT), {"repository": address}).update(metadata)
    assert metadata["urls"] == hooks.project_urls(address)
    assert hooks.project_urls("") == {}
    assert all(
        url.startswith("https://x.example/y") for url in hooks.project_urls("https://x.example/y").values()
    )
    assert set(PROJECT["project"]["dynamic"]) == {"version", "readme", "urls"}
    assert {"authors", "keywords", "classifiers", "license"} <= PROJECT["project"].keys()


def test_the_version_is_the_changelogs_latest_and_the_readmes() -> None:
    changes = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert changes[0] == glassgpt.__version__
    assert f"version {glassgpt.__version__}." in (ROOT / "README.md").read_text("utf-8")
