"""Compile the engine to WebAssembly, for pages without a server: `python -m glassgpt.backends.native.wasm`.

The result is one file without glue: a page hands in three functions and calls the C functions of api.cpp by
their names. It is committed, because few people have the compiler; built again by the same version of it, it
is the same file, byte for byte.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from glassgpt.backends.native.build import FLAGS, SOURCES, BuildError, run, source_hash

TARGET = Path(__file__).parents[2] / "explorer" / "page" / "engine" / "glassgpt.wasm"
VERSION = "3.1.6"  # of emscripten, as in Debian 12: another compiles another file

# Kernels for other processors, and what a page does not need.
LEFT_OUT = ("kernels_avx", "kernels_neon", "kernels_portable", "limits")
WASM_FLAGS = [
    "-msimd128",
    "-fwasm-exceptions",  # no JavaScript is needed to unwind
    "-fno-rtti",
    "-DNDEBUG",
    "--no-entry",
    "-sSTANDALONE_WASM=1",
    "-sWASM_BIGINT=1",
    "-sALLOW_MEMORY_GROWTH=1",
    "-sMAXIMUM_MEMORY=4GB",
    "-sINITIAL_MEMORY=1MB",
    "-sTOTAL_STACK=262144",
    "-sERROR_ON_UNDEFINED_SYMBOLS=0",  # the functions that the page hands in
]


def check_compiler(compiler: str) -> None:
    """Raises unless it is there, and the version that the committed file was made with."""
    try:
        said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise BuildError(f"there is no {compiler}. Install it: apt-get install emscripten") from None
    version = next((word for word in said.split() if word.count(".") == 2 and word[0].isdigit()), "unknown")
    if version != VERSION:
        raise BuildError(f"{compiler} is version {version}, not {VERSION}, which Debian 12 has")


def build_wasm(target: Path = TARGET, compiler: str = "emcc") -> Path:
    """Compile and link the module, under another name until it is whole."""
    check_compiler(compiler)
    sources = sorted(path for path in SOURCES.glob("*.cpp") if not path.name.startswith(LEFT_OUT))
    flags = [*FLAGS, *WASM_FLAGS, f'-DGLASSGPT_SOURCE="{source_hash()}"', f"-ffile-prefix-map={SOURCES}=."]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "glassgpt.wasm"
        run([compiler, *flags, *map(str, sources), "-o", str(out)])
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part{os.getpid()}")
        part.write_bytes(out.read_bytes())
        os.replace(part, target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=TARGET, metavar="FILE")
    try:
        target = build_wasm(parser.parse_args().out)
    except BuildError as problem:
        sys.exit(f"the engine was not compiled to WebAssembly: {problem}.")
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
