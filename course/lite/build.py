"""The course as a JupyterLite site: all lessons in a browser, without installing anything. `make lite`.

    .venv-lite/bin/python course/lite/build.py -o build/lite --wheels WHEELS --npm NODE_MODULES

The kernel is Pyodide, Python as WebAssembly. Its parts come from npm (package.json) and PyPI
(requirements/lite-browser.lock), each checked by its hash. The site is a folder of files for any static web
server; it asks no other server for anything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

LITE = Path(__file__).resolve().parent
ROOT = LITE.parents[1]
KERNEL = "@jupyterlite/pyodide-kernel-extension"
NUMPY_TAG = "cp311-cp311-emscripten_3_1_46_wasm32"

CORE = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
OWN_PACKAGES = ("ssl", "openssl", "sqlite3", "hashlib", "jedi", "parso")  # Pyodide's, from pyodide-files
LEFT_OUT = {"tests", "__pycache__", "distutils", "f2py"}  # of numpy, to save space

# int backtrace(void **buffer, int size) { return 0; }: numpy calls it to see whether it may reuse the memory
# of large arrays, and Pyodide has no such function. A WebAssembly library of 61 bytes. 0 means no.
BACKTRACE = bytes.fromhex(
    "0061736d01000000"  # WebAssembly 1
    "000f0864796c696e6b2e30010400000000"  # the section dylink.0: it needs no memory and no table
    "01070160027f7f017f"  # a type: two numbers in, one out
    "03020100"  # a function of that type
    "070d01096261636b74726163650000"  # exported as backtrace
    "0a0601040041000b"  # its body: 0
)

# glassgpt names the type of bfloat16 weights, and the shipped models have none.
ML_DTYPES = '''"""Stands in for ml_dtypes, which no one compiles for browsers: a type without arithmetic."""

import numpy as np

bfloat16 = np.dtype("V2")
'''


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, required=True, help="the site's folder; it is replaced")
    parser.add_argument(
        "--wheels", type=Path, required=True, help="the wheels of requirements/lite-browser.lock"
    )
    parser.add_argument("--npm", type=Path, required=True, help="the node_modules of package.json")
    given = parser.parse_args()
    out, work = given.out.resolve(), given.out.resolve().with_name(given.out.name + "-work")
    for folder in (out, work):
        shutil.rmtree(folder, ignore_errors=True)
    collect_kernel(work / "static" / "pyodide", given.npm, given.wheels)
    collect_lessons(work / "files")
    command = [sys.executable, "-m", "jupyterlite_core", "build", "--no-sourcemaps", "--output-dir", str(out)]
    command += ["--lite-dir", str(work), "--contents", str(work / "files")]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(f"JupyterLite could not build the site:\n{done.stdout[-3000:]}")
    write_settings(out)
    shutil.rmtree(work)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(
        f"the course is in {given.out}: {size / 1e6:.0f} MB. Look at it: python -m http.server -d {given.out}"
    )


def collect_kernel(folder: Path, npm: Path, wheels: Path) -> None:
    """Pyodide with its packages and ours, and the list of them that it reads."""
    folder.mkdir(parents=True)
    for name in CORE:
        shutil.copy(npm / "pyodide" / name, folder)
    lock = json.loads((folder / "pyodide-lock.json").read_text("utf-8"))
    packages = {name: lock["packages"][name] for name in OWN_PACKAGES}
    for entry in packages.values():
        shutil.copy(npm / "pyodide-files" / entry["file_name"], folder)
        if digest(folder / entry["file_name"]) != entry["sha256"]:
            raise SystemExit(f"{entry['file_name']} of pyodide-files is not the one that Pyodide names")
    for entry in packages.values():
        entry["depends"] = [name for name in entry["depends"] if name in packages]
    kernel = Path(sys.prefix) / "share/jupyter/labextensions" / KERNEL / "static/pypi"
    for wheel in [*sorted(wheels.glob("*.whl")), *sorted(kernel.glob("*.whl"))]:
        if wheel.name.startswith(("widgetsnbextension-3", "jedi-", "parso-")):
            continue
        shutil.copy(wheel, folder)
        packages.update([wheel_entry(folder / wheel.name)])
    packages.update([library_entry(folder)])
    numpy = numpy_wheel(npm / "@emscripten-forge" / "numpy", folder)
    packages.update([wheel_entry(numpy, depends=["libbacktrace"])])
    packages.update([wheel_entry(glassgpt_wheel(folder))])
    lock["packages"] = packages
    (folder / "pyodide-lock.json").write_text(json.dumps(lock), "utf-8")


def library_entry(folder: Path) -> tuple[str, dict[str, Any]]:
    path = folder / "libbacktrace-1.0.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("libbacktrace.so", (2020, 1, 1, 0, 0, 0)), BACKTRACE)
    return "libbacktrace", {
        "name": "libbacktrace",
        "version": "1.0",
        "file_name": path.name,
        "sha256": digest(path),
        "install_dir": "dynlib",
        "package_type": "shared_library",
        "imports": [],
        "depends": [],
        "shared_library": True,
        "unvendored_tests": False,
    }


def wheel_entry(wheel: Path, depends: list[str] | None = None) -> tuple[str, dict[str, Any]]:
    """A package for pyodide-lock.json. The kernel loads all of them, so none names what it needs."""
    name, version = wheel.name.split("-")[:2]
    name = name.lower().replace("_", "-")
    with zipfile.ZipFile(wheel) as archive:
        tops = {file.split("/")[0].removesuffix(".py") for file in archive.namelist()}
    return name, {
        "name": name,
        "version": version,
        "file_name": wheel.name,
        "sha256": digest(wheel),
        "install_dir": "site",
        "package_type": "package",
        "imports": sorted(top for top in tops if top.isidentifier()),
        "depends": depends or [],
        "shared_library": False,
        "unvendored_tests": False,
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_wheel(folder: Path, name: str, tag: str, files: Iterable[tuple[str, bytes]], metadata: str) -> Path:
    """A wheel whose bytes depend on nothing but its files."""
    path = folder / f"{name}-{tag}.whl"
    info = f"{name}.dist-info"
    wheel = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
    extra = [(f"{info}/METADATA", metadata.encode()), (f"{info}/WHEEL", wheel.encode())]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for inside, data in [*files, *extra, (f"{info}/RECORD", b"")]:
            archive.writestr(zipfile.ZipInfo(inside, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return path


def numpy_wheel(package: Path, folder: Path) -> Path:
    """numpy for Pyodide: emscripten-forge compiles it for the same Python and Emscripten."""
    archive = next((package / "pkg").glob("numpy-*.tar.gz"))
    version = archive.name.split("-")[1]
    files = []
    with tarfile.open(archive) as tar:
        for member in sorted(tar, key=lambda entry: entry.name):
            inside = member.name.removeprefix("./").partition("site-packages/")[2]
            if member.isfile() and inside.startswith("numpy/") and not LEFT_OUT & set(inside.split("/")):
                files.append((inside, tar.extractfile(member).read()))
    metadata = f"Metadata-Version: 2.1\nName: numpy\nVersion: {version}\n"
    return write_wheel(folder, f"numpy-{version}", NUMPY_TAG, files, metadata)


def glassgpt_wheel(folder: Path) -> Path:
    """The package with the shipped models, without what a browser cannot run."""
    source = (ROOT / "src/glassgpt/__init__.py").read_text("utf-8")
    version = re.findall(r'^__version__ = "([^"]+)"', source, re.M)[0]
    metadata = f"Metadata-Version: 2.1\nName: glassgpt\nVersion: {version}\n"
    return write_wheel(folder, f"glassgpt-{version}", "py3-none-any", package_files(), metadata)


def package_files() -> Iterator[tuple[str, bytes]]:
    source = ROOT / "src"
    yield "ml_dtypes.py", ML_DTYPES.encode()
    for path in sorted((source / "glassgpt").rglob("*")):
        inside = path.relative_to(source).as_posix()
        kept = path.suffix == ".py" or inside.startswith("glassgpt/data/") or path.suffix == ".toml"
        if path.is_file() and kept and "__pycache__" not in inside:
            yield inside, path.read_bytes()
    for notebook in sorted((ROOT / "course").glob("[0-9][0-9]-*.ipynb")):
        yield f"glassgpt/course/notebooks/{notebook.name}", notebook.read_bytes()


def collect_lessons(folder: Path) -> None:
    """The notebooks without their outputs: here the reader runs them."""
    folder.mkdir(parents=True)
    for path in sorted((ROOT / "course").glob("[0-9][0-9]-*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        notebook["metadata"]["kernelspec"] = {
            "display_name": "Python (Pyodide)", "language": "python", "name": "python",
        }  # fmt: skip
        (folder / path.name).write_text(json.dumps(notebook, ensure_ascii=False, indent=1), "utf-8")


def write_settings(out: Path) -> None:
    """The site's name, and the packages that the kernel loads when it starts: all of them lie in the site."""
    path = out / "jupyter-lite.json"
    settings = json.loads(path.read_text("utf-8"))
    lock = json.loads((out / "static/pyodide/pyodide-lock.json").read_text("utf-8"))
    data = settings["jupyter-config-data"]
    data["appName"] = "GlassGPT: the course"
    data["exposeAppInBrowser"] = True  # as window.jupyterapp: check.py runs the cells with it
    data["litePluginSettings"][f"{KERNEL}:kernel"] |= {
        "pyodideUrl": "./static/pyodide/pyodide.js",
        "disablePyPIFallback": True,
        "loadPyodideOptions": {"packages": sorted(lock["packages"])},
    }
    path.write_text(json.dumps(settings, indent=1, sort_keys=True), "utf-8")


if __name__ == "__main__":
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1577836800")
    main()
