"""course/lite/build.py, which writes the course as a JupyterLite site. `make test-lite` runs the site."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LITE = ROOT / "course" / "lite"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("lite_build", LITE / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_the_library_that_pyodide_lacks_is_webassembly_and_returns_zero(build):
    assert len(build.BACKTRACE) == 61
    script = f"""
        const module = new WebAssembly.Module(Uint8Array.from({list(build.BACKTRACE)}));
        const library = new WebAssembly.Instance(module).exports;
        const section = WebAssembly.Module.customSections(module, 'dylink.0')[0].byteLength;
        console.log(Object.keys(library), library.backtrace(1, 2), section);"""
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[", "'backtrace'", "]", "0", "6"]


def test_lessons_are_without_outputs_and_otherwise_the_same(build, tmp_path):
    tmp_path /= "files"
    build.collect_lessons(tmp_path)
    originals = sorted((ROOT / "course").glob("*.ipynb"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in originals]
    for path in originals:
        before, after = (json.loads(one.read_text("utf-8")) for one in (path, tmp_path / path.name))
        assert [cell["source"] for cell in after["cells"]] == [cell["source"] for cell in before["cells"]]
        assert not any(cell.get("outputs") for cell in after["cells"])
        assert after["metadata"]["kernelspec"]["name"] == "python"


def test_the_package_for_the_browser_has_models_lessons_and_no_compiled_file(build):
    names = [name for name, _ in build.package_files()]
    assert len(names) == len(set(names))
    assert {"ml_dtypes.py", "glassgpt/course/check.py", "glassgpt/course/notebooks/12-beyond.ipynb"} <= set(
        names
    )
    for model in ("tiny", "default", "en-fr", "music"):
        assert f"glassgpt/data/{model}/model.int8.safetensors" in names
    assert not [name for name in names if name.endswith((".so", ".pyc", ".wasm", ".js"))]


def test_a_wheel_depends_on_its_files_alone_and_numpys_tests_stay_out(build, tmp_path):
    package = tmp_path / "numpy" / "pkg"
    package.mkdir(parents=True)
    with tarfile.open(package / "numpy-2.1.1-py311.tar.gz", "w:gz") as archive:
        for name in ("numpy/__init__.py", "numpy/tests/test_a.py", "numpy/core.so"):
            member = tarfile.TarInfo(f"lib/python3.11/site-packages/{name}")
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    wheels = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        wheels.append(build.numpy_wheel(tmp_path / "numpy", folder))
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        assert archive.namelist()[:2] == ["numpy/__init__.py", "numpy/core.so"]
        assert "numpy-2.1.1.dist-info/METADATA" in archive.namelist()
    name, entry = build.wheel_entry(wheels[0], depends=["libbacktrace"])
    assert (name, entry["version"], entry["depends"]) == ("numpy", "2.1.1", ["libbacktrace"])
    assert entry["sha256"] == build.digest(wheels[0])
    assert entry["imports"] == ["numpy"]


def test_a_part_that_is_not_pyodides_is_refused(build, tmp_path):
    npm, wheels, folder = tmp_path / "npm", tmp_path / "wheels", tmp_path / "site"
    (npm / "pyodide").mkdir(parents=True)
    (npm / "pyodide-files").mkdir()
    wheels.mkdir()
    for name in build.CORE:
        (npm / "pyodide" / name).write_bytes(b"x")
    entry = {"file_name": "ssl.zip", "sha256": "0" * 64, "depends": []}
    lock = {"info": {}, "packages": dict.fromkeys(build.OWN_PACKAGES, entry)}
    (npm / "pyodide" / "pyodide-lock.json").write_text(json.dumps(lock))
    (npm / "pyodide-files" / "ssl.zip").write_bytes(b"changed")
    with pytest.raises(SystemExit, match=r"ssl\.zip of pyodide-files is not the one"):
        build.collect_kernel(folder, npm, wheels)


def test_what_comes_from_npm_is_locked_by_hash():
    wanted = json.loads((LITE / "package.json").read_text("utf-8"))["dependencies"]
    packages = json.loads((LITE / "package-lock.json").read_text("utf-8"))["packages"]
    assert packages.pop("")["dependencies"] == wanted
    assert all(re.fullmatch(r"\d[\w.-]*", version) for version in wanted.values()), "exact versions"
    for name, facts in packages.items():
        assert facts["integrity"].startswith("sha512-"), name
        assert "resolved" not in facts, name
