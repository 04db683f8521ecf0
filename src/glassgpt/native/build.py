"""Compile the engine with the C++ compiler of this machine: `python -m glassgpt.native.build`.

Installing the package does this as well (hatch_build.py), which is why only the standard library is imported
here. Files of kernels are compiled for more instructions than the CPU at hand may have; api.cpp asks it
before they run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import os
import sys
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
FLAGS += [
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-unknown-warning-option",
]  # gcc 12's own headers
# Kernels with the address sanitizer alone: with the other their hundred instances take minutes to compile.
SANITIZE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-fsanitize=address"]
UNDEFINED = ["-fsanitize=undefined"]

X86_FLAGS = {
    "kernels_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "kernels_avx512.cpp": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c".split(),
}


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

    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found is None:
        raise BuildError("there is no C++ compiler (c++, g++, clang++). Install one, or name it in CXX")
    return [found]


def build(target: Path = LIBRARY, sanitize: bool = False, compiler: list[str] | None = None) -> Path:
    """Compile and link the library, under another name until it is whole."""
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    compiler = find_compiler() if compiler is None else compiler
    flags = [*FLAGS, f'-DGLASSGPT_SOURCE="{source_hash()}"', *(SANITIZE if sanitize else [])]
    if sys.platform != "win32":
        flags += ["-fPIC", "-pthread"]
    machine = machine_of(compiler)
    special = X86_FLAGS if machine.startswith("x86_64") else {}
    with tempfile.TemporaryDirectory() as scratch:

        def compile_one(source: Path) -> str:
            out = str(Path(scratch) / f"{source.stem}.o")
            command = [*compiler, *flags, *special.get(source.name, []), "-c", str(source), "-o", out]
            if sanitize and source.name not in X86_FLAGS:
                command += UNDEFINED
            if source.name in special and not succeeds(
                command
            ):  # an old compiler: without these instructions
                command = [*compiler, *flags, "-c", str(source), "-o", out]
            run(command)
            return out

        sources = sorted(SOURCES.glob("*.cpp"), key=lambda path: -path.name.count("kernels"))
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            objects = list(pool.map(compile_one, sources))
        part = target.with_name(f"{target.name}.part{os.getpid()}")
        run([*compiler, "-shared", *flags, *(UNDEFINED if sanitize else []), *objects, "-o", str(part)])
        os.replace(part, target)
    return target


def machine_of(compiler: list[str]) -> str:
    """What the compiler compiles for."""
    import platform
    import subprocess

    found = ""
    with contextlib.suppress(OSError):
        found = subprocess.run([*compiler, "-dumpmachine"], capture_output=True, text=True).stdout.strip()
    return found or platform.machine().lower().replace("amd64", "x86_64")


def succeeds(command: list[str]) -> bool:
    import subprocess

    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def run(command: list[str]) -> None:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, text=True)
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
