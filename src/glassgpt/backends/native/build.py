"""Compile the engine with the C++ compiler of this machine: `python -m glassgpt.backends.native.build`.

Installing the package does this as well (hatch_build.py), which is why only the standard library is imported
here. Files of kernels are compiled for more instructions than the CPU at hand may have; kernels.cpp asks it
before they run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

# What only compiling needs is imported where it is used: loading the engine reads this file too.

HERE = Path(__file__).parent
SOURCES = HERE / "cpp"
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
LIBRARY = HERE / f"_engine{SUFFIX}"

# -ffp-contract=off: the compiler must not decide by itself where products and sums round together.
FLAGS = [
    "-O3",
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]
# For gcc 12's own headers.
FLAGS += ["-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-unknown-warning-option"]
# Kernels with the address sanitizer alone: with the other their hundred instances take minutes to compile.
SANITIZE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-fsanitize=address"]
UNDEFINED = ["-fsanitize=undefined"]

# By the first part of what the compiler compiles for: the instructions that a file may use.
_X86 = {
    "kernels_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "kernels_avx2_vnni.cpp": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"],
    "kernels_avx512.cpp": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c".split(),
}
_ARM = {"kernels_neon_dot.cpp": ["-march=armv8.2-a+dotprod"]}
INSTRUCTIONS = {"x86_64": _X86, "aarch64": _ARM, "arm64": _ARM}


class BuildError(Exception):
    """The engine could not be compiled; the message is for the user."""


def source_hash() -> str:
    """Of all sources, so that a library can be told from one of other sources."""
    hasher = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.*")):
        hasher.update(path.name.encode() + path.read_bytes())
    return hasher.hexdigest()[:16]


def find_compiler() -> list[str]:
    """$CXX, or the first of the usual names."""
    if os.environ.get("CXX"):
        return os.environ["CXX"].split()
    import shutil

    path = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if path is None:
        raise BuildError("there is no C++ compiler (c++, g++, clang++). Install one, or name it in CXX")
    return [path]


def build(target: Path | None = None, sanitize: bool = False, compiler: list[str] | None = None) -> Path:
    """Compile and link the library, under another name until it is whole. It is for the machine that the
    compiler compiles for, which need not be this one: CXX="zig c++ -target aarch64-macos" makes a library for
    a Mac."""
    import shutil
    import tempfile

    compiler = find_compiler() if compiler is None else compiler
    machine = machine_of(compiler)
    target = HERE / f"_engine{suffix_of(machine)}" if target is None else target
    flags = [*FLAGS, f'-DGLASSGPT_SOURCE="{source_hash()}"', *(SANITIZE if sanitize else [])]
    if suffix_of(machine) != ".dll":
        flags += ["-fPIC", "-pthread"]
    with tempfile.TemporaryDirectory() as scratch:
        objects = compile_sources(compiler, flags, SOURCES.glob("*.cpp"), Path(scratch), sanitize)
        # Some linkers write the name they were given, and those of the object files, into the library: no
        # name that is another in the next build, so that the same sources make the same bytes.
        linked = Path(scratch) / target.name
        link = [
            *compiler,
            "-shared",
            *flags,
            *(UNDEFINED if sanitize else []),
            *map(os.path.basename, objects),
        ]
        run([*link, *([] if sanitize else strip_flags(machine)), "-o", linked.name], folder=Path(scratch))
        if not linked.is_file():
            raise BuildError(f"{compiler[0]!r} wrote no library. Name a C++ compiler in CXX, for example g++")
        part = target.with_name(f"{target.name}.part{os.getpid()}")
        shutil.copyfile(linked, part)
        part.chmod(0o755)
        os.replace(part, target)
    return target


def suffix_of(machine: str) -> str:
    """The suffix of a library there, by what the compiler says it compiles for."""
    if any(name in machine for name in ("darwin", "macos")):
        return ".dylib"
    if any(name in machine for name in ("windows", "mingw", "cygwin")):
        return ".dll"
    return ".so" if "linux" in machine else SUFFIX


def strip_flags(machine: str) -> list[str]:
    """No symbols that nothing reads: of a library for Linux a third of its bytes, of one by zig for macOS the
    paths of its object files. Apple's own linker (its compiler says darwin) no longer knows the flag."""
    return [] if "darwin" in machine else ["-s"]


def compile_sources(
    compiler: list[str], flags: list[str], sources: Iterable[Path], folder: Path, sanitize: bool = False
) -> list[str]:
    """Object files, each compiled for the instructions that its kernels use."""
    from concurrent.futures import ThreadPoolExecutor

    instructions = INSTRUCTIONS.get(machine_of(compiler).split("-")[0], {})

    def compile_one(source: Path) -> str:
        out = str(folder / f"{source.stem}.o")
        command = [*compiler, *flags, "-c", str(source), "-o", out]
        if sanitize and source.name not in instructions:
            command += UNDEFINED
        special = instructions.get(source.name)
        if special is None or not succeeds([*command, *special]):
            run(command)  # without them, an old compiler makes a file without kernels
        return out

    longest_first = sorted(sources, key=lambda path: -path.name.count("kernels_"))
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(compile_one, longest_first))


def machine_of(compiler: list[str]) -> str:
    """What the compiler compiles for."""
    import platform
    import subprocess

    target = ""
    with contextlib.suppress(OSError):
        target = subprocess.run([*compiler, "-dumpmachine"], capture_output=True, text=True).stdout.strip()
    return target or platform.machine().lower().replace("amd64", "x86_64")


def succeeds(command: list[str]) -> bool:
    import subprocess

    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def run(command: list[str], folder: Path | None = None) -> None:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    except OSError as error:
        raise BuildError(f"the compiler {command[0]!r} cannot be run: {error.strerror}") from None
    if done.returncode:
        first = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200]
        )
        raise BuildError(f"{command[0]} failed: {first}")


def is_current() -> bool:
    """Whether the library is there, and made of these sources."""
    try:
        source = ctypes.CDLL(str(LIBRARY)).glassgpt_source
    except (OSError, AttributeError):
        return False
    source.restype = ctypes.c_char_p
    return bool(source().decode() == source_hash())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--if-stale", action="store_true", help="do nothing if it is made of these sources")
    parser.add_argument("--sanitize", type=Path, metavar="FILE", help="with sanitizers, as FILE")
    args = parser.parse_args()
    try:
        if args.sanitize:
            args.sanitize.parent.mkdir(parents=True, exist_ok=True)
            print(build(args.sanitize, sanitize=True))
        elif not (args.if_stale and is_current()):
            print(build())
    except BuildError as problem:
        message = f"the native engine was not built: {problem}."
        if not args.if_stale:
            sys.exit(message)
        print(f"{message} GlassGPT runs without it, slower.")


if __name__ == "__main__":
    main()
