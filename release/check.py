"""Check that a release repeats itself and is what it should be: `python release/check.py`, `make
release-check`.

Everything is built twice, by compilers that share no cache, and compared byte for byte. Then: twine reads the
metadata, auditwheel the libraries that the Linux wheels need, every wheel holds one engine for its platform
and no model, the bill of materials (CycloneDX) is written and validated, and the wheels run in an environment
of their own. `dist/` has the files to publish, `build/release/` their hashes and the bill.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

from install import install, run, use
from wheels import PLATFORMS, ROOT, build_all

LIMIT = 3_000_000  # bytes of a wheel without models
BIN = Path(sys.executable).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", nargs="+", choices=PLATFORMS, default=list(PLATFORMS), metavar="PLATFORM")
    args = parser.parse_args()
    work = ROOT / "build" / "release"
    shutil.rmtree(work, ignore_errors=True)
    first = build_all(work / "first", args.only, cache=work / "zig-first")
    second = build_all(work / "second", args.only, cache=work / "zig-second")
    hashes = compare(first, second)
    wheels = [path for path in first if path.suffix == ".whl"]
    for wheel in wheels:
        check_contents(wheel)
    run(BIN / "twine", "check", "--strict", *first)
    for wheel in wheels:
        if "manylinux" in wheel.name:
            check_manylinux(wheel)
        elif "musllinux" in wheel.name:
            check_musllinux(wheel)
    bill = write_bill(work / f"{first[0].name.removesuffix('.tar.gz')}.cdx.json")
    check_runs(wheels)
    publish(first, args.out)
    sums = "".join(f"{digest}  {path.name}\n" for path, digest in sorted(hashes.items()))
    (work / "SHA256SUMS").write_text(sums, "utf-8")
    for path, digest in hashes.items():
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {digest[:16]}  {path.name}")
    print(f"\n{len(hashes)} files, equal in two builds: {args.out}; SHA256SUMS and {bill.name}: {work}")


def compare(first: list[Path], second: list[Path]) -> dict[Path, str]:
    """The hash of every file, the same in both builds."""
    hashes = {path: sha256(path) for path in first}
    differing = [
        path.name for path, other in zip(first, second, strict=True)
        if path.name != other.name or hashes[path] != sha256(other)
    ]  # fmt: skip
    if differing:
        raise SystemExit(f"not the same bytes when built twice: {', '.join(differing)}")
    return hashes


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_contents(wheel: Path) -> None:
    """One engine, for the platform of the tag; and models only where they belong."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        models = [name for name in names if name.endswith(".safetensors")]
        if wheel.name.startswith("glassgpt_models-"):
            if len(models) != 5:
                raise SystemExit(f"{wheel.name} has {len(models)} files of weights, not 5")
            return
        engines = [name for name in names if "/_engine." in name]
        (platform,) = (one for one in PLATFORMS.values() if wheel.stem.endswith(one.tag))
        if [Path(name).name for name in engines] != [platform.library] or models:
            raise SystemExit(f"{wheel.name} holds {engines or 'no engine'} and {len(models)} models")
        header = archive.read(engines[0])[:4]
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    magic = {".so": b"\x7fELF", ".dylib": b"\xcf\xfa\xed\xfe", ".dll": b"MZ"}[Path(platform.library).suffix]
    if not header.startswith(magic):
        raise SystemExit(f"{wheel.name}: {platform.library} is of another system")
    if "Requires-Dist: glassgpt-models==" not in metadata:
        raise SystemExit(f"{wheel.name} does not depend on glassgpt-models")
    if wheel.stat().st_size > LIMIT:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {LIMIT:,}")


def check_manylinux(wheel: Path) -> None:
    """auditwheel finds the platform that the wheel's tag promises."""
    shown = run(BIN / "auditwheel", "show", wheel)
    tag = next(one.tag for one in PLATFORMS.values() if wheel.stem.endswith(one.tag)).split(".")[0]
    if f'"{tag}"' not in " ".join(shown.split()):
        raise SystemExit(f"auditwheel does not find {tag} in {wheel.name}:\n{shown}")


def check_musllinux(wheel: Path) -> None:
    """The engine needs musl and nothing else. auditwheel would look for musl on this machine."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/_engine.so"))
        sections = ELFFile(BytesIO(archive.read(name))).iter_sections()
        needed = [
            tag.needed
            for section in sections if isinstance(section, DynamicSection)
            for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"
        ]  # fmt: skip
    if needed != ["libc.so"]:
        raise SystemExit(f"{wheel.name}: the engine needs {needed}, not musl alone")


def write_bill(path: Path) -> Path:
    """The bill of materials: what an installation with a server has, by the lock, with the hash of every
    file."""
    run(
        BIN / "cyclonedx-py", "requirements", ROOT / "requirements" / "light.lock",
        "--pyproject", ROOT / "pyproject.toml",
        "--output-reproducible", "--output-format", "JSON", "--spec-version", "1.6", "-o", path,
    )  # fmt: skip
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text("utf-8"))
    if wrong is not None:
        raise SystemExit(f"the bill of materials is not valid CycloneDX 1.6: {wrong}")
    return path


def check_runs(wheels: list[Path]) -> None:
    """Installed from the wheels into an environment of its own, the models run on the compiled engine."""
    fitting = "manylinux_2_17_x86_64"
    if (
        sys.platform != "linux"
        or os.uname().machine != "x86_64"
        or not any(fitting in w.name for w in wheels)
    ):
        print(f"not run: no wheel of these is for this machine ({sys.platform})")
        return
    with tempfile.TemporaryDirectory() as scratch:
        use(install(wheels[0].parent, Path(scratch) / "venv", offline=False), Path(scratch))


def publish(files: list[Path], out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for path in files:
        shutil.copyfile(path, out / path.name)


if __name__ == "__main__":
    main()
