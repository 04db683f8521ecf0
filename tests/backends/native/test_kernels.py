"""The kernels of each kind of CPU against each other, in odd shapes, here and on ARM as qemu plays it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from glassgpt.backends.native import build

CHECK = Path(__file__).parent / "kernels_check.cpp"
ARM_COMPILER, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"

# Sums of a hundred products, rounded together or one by one, differ by a few units in the last place.
ROUNDING = 1e-6


@dataclass
class Line:
    """What one kernel made of its numbers."""

    kernels: str
    case: str
    bits: str
    difference: float  # from the portable kernels, relative to the largest number


def compile_check(folder: Path, compiler: list[str], *link: str, only: str = "*") -> str:
    """kernels_check.cpp with all of the engine, as a program; sources that match `only` anew."""
    flags = [*build.FLAGS, "-O1", "-pthread", f"-I{build.SOURCES}"]
    sources = [path for path in [*build.SOURCES.glob("*.cpp"), CHECK] if path.match(only)]
    build.compile_sources(compiler, flags, sources, folder)
    program = str(folder / "check")
    build.run([*compiler, "-pthread", *link, *map(str, folder.glob("*.o")), "-o", program])
    return program


def run_check(*command: str) -> list[Line]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    fields = [line.split(" | ") for line in done.stdout.splitlines()]
    return [Line(kernels, case, bits, float(difference)) for kernels, case, bits, difference in fields]


def assert_kernels_agree(lines: list[Line]) -> None:
    assert not [line for line in lines if line.case.startswith("LOST")]
    assert not [line for line in lines if not line.difference <= ROUNDING]
    vector: dict[str, str] = {}
    for line in lines:
        if line.case.startswith("exact"):
            assert line.difference == 0, line
        if line.kernels != "portable":  # the others round a product and its sum together, in the same order
            assert vector.setdefault(line.case, line.bits) == line.bits, line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program for this machine and its object files are."""
    return tmp_path_factory.mktemp("check")


@pytest.fixture(scope="module")
def here(folder: Path) -> list[Line]:
    try:
        compiler = build.find_compiler()
    except build.BuildError as problem:
        pytest.skip(str(problem))
    return run_check(compile_check(folder, compiler))


@pytest.mark.slow
def test_the_kernels_of_this_machine_agree(here: list[Line]) -> None:
    assert_kernels_agree(here)
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() == "x86_64" and cpuinfo.exists():
        flags = set(cpuinfo.read_text().split())
        names = {line.kernels for line in here}
        assert ("avx2" in names) == ({"avx2", "fma", "f16c"} <= flags)
        assert ("avx512" in names) == ({"avx2", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= flags)


@pytest.mark.slow
def test_avx2_with_vnni(here: list[Line], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the encoding of AVX-512, for want of a CPU that has it in that of AVX2 alone."""
    if "avx512" not in {line.kernels for line in here}:
        pytest.skip("this CPU has no AVX-512 VNNI")
    flags = "-mavx2 -mfma -mf16c -mavx512vl -mavx512vnni".split()
    monkeypatch.setitem(build.INSTRUCTIONS["x86_64"], "kernels_avx2.cpp", flags)
    lines = run_check(compile_check(folder, build.find_compiler(), only="kernels_avx2.cpp"))
    assert "avx2" in {line.kernels for line in lines}
    assert_kernels_agree(here + lines)


@pytest.mark.slow
def test_the_kernels_of_arm_agree_with_those_of_this_machine(here: list[Line], tmp_path: Path) -> None:
    for tool in (ARM_COMPILER, QEMU):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing (Debian: g++-aarch64-linux-gnu, qemu-user)")
    program = compile_check(tmp_path, [ARM_COMPILER], "-static")
    arm = run_check(QEMU, program)
    assert {line.kernels for line in arm} == {"portable", "neon", "neon-dot"}
    assert_kernels_agree(arm)
    without_dot = run_check(QEMU, "-cpu", "cortex-a53", program)
    assert {line.kernels for line in without_dot} == {"portable", "neon"}
    # Bit for bit, except for functions of the C library, which may round otherwise.
    assert_kernels_agree([line for line in here + arm if not line.case.startswith("libm")])
    portable = {line.case: line.bits for line in here if line.kernels == "portable"}
    for line in arm:
        if line.kernels == "portable" and not line.case.startswith("libm"):
            assert line.bits == portable[line.case], line
