"""Build every file of a release: `python release/wheels.py -o dist` (`make wheels`).

The source distribution comes first, from the files that git tracks; every wheel of `glassgpt` is made from
it, each with the engine compiled by zig for another platform, and `glassgpt-models` is made from the models
in the checkout. Nothing depends on this machine: the same sources make the same bytes (release/check.py
compares two builds).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Platform(NamedTuple):
    """What zig compiles for, and the tag of the wheel."""

    target: str
    tag: str
    library: str


PLATFORMS = {
    "manylinux-x86_64": Platform(
        "x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64.manylinux2014_x86_64", "_engine.so"
    ),
    "manylinux-aarch64": Platform(
        "aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64.manylinux2014_aarch64", "_engine.so"
    ),
    "musllinux-x86_64": Platform("x86_64-linux-musl", "musllinux_1_2_x86_64", "_engine.so"),
    "musllinux-aarch64": Platform("aarch64-linux-musl", "musllinux_1_2_aarch64", "_engine.so"),
    "macos-arm64": Platform("aarch64-macos.11.0", "macosx_11_0_arm64", "_engine.dylib"),
    "macos-x86_64": Platform("x86_64-macos.11.0", "macosx_11_0_x86_64", "_engine.dylib"),
    "windows-amd64": Platform("x86_64-windows-gnu", "win_amd64", "_engine.dll"),
}


def build_all(out: Path, names: list[str], *, cache: Path) -> list[Path]:
    """The source distribution, the models and the wheels of these platforms, in `out`. `cache` is the
    compiler's: another one for another build, or it would hand out what the first had compiled."""
    out.mkdir(parents=True, exist_ok=True)
    made = [build_sdist(out), build_models(out)]
    for name in names:
        print(f"compiling for {name}", flush=True)
        made.append(build_wheel(made[0], out, PLATFORMS[name], cache=cache))
    return made


def build_sdist(out: Path) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "glassgpt"
        copy_tracked(folder)
        return hatchling(folder, "sdist", out)


def copy_tracked(folder: Path) -> None:
    """What git tracks, as it is now, but not the models."""
    command = [
        "git",
        "ls-files",
        "-z",
        "src",
        "hatch_build.py",
        "pyproject.toml",
        ".gitignore",
        "*.md",
        "LICENSE",
    ]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if not source.is_file() or (name.startswith("src/glassgpt/data/") and "/smoke/" not in name):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def build_models(out: Path) -> Path:
    return hatchling(ROOT / "release" / "models", "wheel", out)


def build_wheel(sdist: Path, out: Path, platform: Platform, *, cache: Path) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        (folder,) = Path(scratch).iterdir()
        return hatchling(
            folder,
            "wheel",
            out,
            CXX=f"{sys.executable} -m ziglang c++ -target {platform.target}",
            GLASSGPT_PLATFORM_TAG=platform.tag,
            ZIG_LOCAL_CACHE_DIR=str(cache.resolve()),
            ZIG_GLOBAL_CACHE_DIR=str(cache.resolve()),
        )


def hatchling(folder: Path, kind: str, out: Path, **environment: str) -> Path:
    """The file that hatchling makes of a project, which says in its warnings what it could not compile."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", scratch],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        made = list(Path(scratch).iterdir())
        if done.returncode or len(made) != 1 or "was not built" in done.stdout + done.stderr:
            raise SystemExit(f"the {kind} of {folder.name} was not made:\n{done.stdout}{done.stderr}")
        return Path(shutil.move(made[0], out / made[0].name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", nargs="*", choices=PLATFORMS, default=list(PLATFORMS), metavar="PLATFORM")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "zig", help="the compiler's")
    args = parser.parse_args()
    for path in build_all(args.out, args.only, cache=args.cache):
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}")


if __name__ == "__main__":
    main()
