"""The two distributions: what is in each, what it needs, and how an installation finds the models."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from glassgpt import __version__
from glassgpt.backends.native.build import strip_flags, suffix_of
from glassgpt.weights import load_tokenizer
from glassgpt.weights.registry import DATA, MODELS, shipped_names

pytest.importorskip("hatchling", reason="hatchling is not installed: make test installs it")

ROOT = Path(__file__).resolve().parents[1]
NEEDS_MODELS = f"Requires-Dist: glassgpt-models=={__version__}"


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    from release import wheels

    return wheels


@pytest.fixture(scope="module")
def source(wheels: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(wheels.build_sdist(folder)) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


def test_the_source_distribution_has_all_but_the_models_and_needs_them(source: Path) -> None:
    assert list(source.rglob("*.safetensors")) == []
    assert (source / "src/glassgpt/data/smoke/text.txt").is_file()
    assert (source / "src/glassgpt/backends/native/cpp/engine.cpp").is_file()
    ours = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*.py")}
    assert ours == {path.relative_to(source / "src") for path in (source / "src").rglob("*.py")}
    assert NEEDS_MODELS in (source / "PKG-INFO").read_text("utf-8")


def test_a_wheel_of_it_needs_the_models(source: Path, tmp_path: Path) -> None:
    """The engine is left out: no compiler is named "false"."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=source, env={**os.environ, "CXX": "false"}, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"glassgpt-{__version__}.dist-info/METADATA").decode()
        names = archive.namelist()
    assert NEEDS_MODELS in metadata
    assert not any(name.endswith(".safetensors") for name in names)
    assert wheel.stat().st_size < 3_000_000


def test_the_models_are_all_in_their_own_distribution() -> None:
    project = tomllib.loads((ROOT / "release/models/pyproject.toml").read_text("utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    folders = {Path(target).name for target in included.values()} - {"LICENSE"}
    assert folders == set(MODELS) == set(shipped_names())
    for path in (*included, project["tool"]["hatch"]["version"]["path"]):
        assert (ROOT / "release/models" / path).exists(), path


def run_installed(source: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`glassgpt` as an installation without models in the package has it, with `folder` on its path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source / "src"), str(folder)])}
    return subprocess.run(
        [sys.executable, "-m", "glassgpt", *words], cwd=folder, env=env, capture_output=True, text=True
    )


def test_an_installation_finds_the_models_in_their_package(source: Path, tmp_path: Path) -> None:
    without = run_installed(source, tmp_path, "tokens", "The sea", "--ids", "--model", "tiny")
    assert without.returncode == 2
    assert "the model tiny is not installed. Type: pip install glassgpt-models" in without.stderr
    package = tmp_path / "glassgpt_models"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tiny").symlink_to(DATA / "tiny")
    found = run_installed(source, tmp_path, "tokens", "The sea", "--ids", "--model", "tiny")
    assert found.stdout.split() == list(map(str, load_tokenizer("tiny").encode("The sea"))), found.stderr


@pytest.mark.parametrize(
    ("machine", "suffix", "strip"),
    [
        ("x86_64-linux-gnu", ".so", ["-s"]),
        ("aarch64-unknown-linux-musl", ".so", ["-s"]),
        ("arm64-apple-darwin23.1.0", ".dylib", []),
        ("aarch64-unknown-macos.11.0", ".dylib", ["-s"]),
        ("x86_64-w64-mingw32", ".dll", ["-s"]),
        ("x86_64-unknown-windows-gnu", ".dll", ["-s"]),
    ],
)
def test_the_library_is_named_for_what_the_compiler_compiles_for(
    machine: str, suffix: str, strip: list[str]
) -> None:
    assert (suffix_of(machine), strip_flags(machine)) == (suffix, strip)


class TestCheck:
    """release/check.py refuses what is wrong."""

    @pytest.fixture
    def check(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        monkeypatch.syspath_prepend(ROOT / "release")
        import check

        return check

    def wheel(self, folder: Path, tag: str, *names: str) -> Path:
        path = folder / f"glassgpt-1-py3-none-{tag}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"\x7fELF")
            archive.writestr("glassgpt-1.dist-info/METADATA", "Requires-Dist: glassgpt-models==1\n")
        return path

    def test_files_that_differ(self, check: ModuleType, tmp_path: Path) -> None:
        for folder, text in (("a", "same"), ("b", "same"), ("c", "other")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "x.whl").write_text(text)
        first, same, other = ([tmp_path / folder / "x.whl"] for folder in "abc")
        assert list(check.compare(first, same)) == first
        with pytest.raises(SystemExit, match=r"not the same bytes when built twice: x\.whl"):
            check.compare(first, other)

    def test_wheels(self, check: ModuleType, tmp_path: Path) -> None:
        engine = "glassgpt/backends/native/_engine.so"
        tag = check.PLATFORMS["musllinux-x86_64"].tag
        check.check_contents(self.wheel(tmp_path, tag, engine))
        with pytest.raises(SystemExit, match="holds no engine and 0 models"):
            check.check_contents(self.wheel(tmp_path, tag))
        with pytest.raises(SystemExit, match="and 1 models"):
            check.check_contents(
                self.wheel(tmp_path, tag, engine, "glassgpt/data/tiny/model.int8.safetensors")
            )
        with pytest.raises(SystemExit, match=r"_engine\.dll is of another system"):
            check.check_contents(self.wheel(tmp_path, "win_amd64", engine.replace(".so", ".dll")))
