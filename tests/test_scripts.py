"""Every script that CONTRIBUTING.md names runs, and none leaves an empty or broken file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from glassgpt.backends import native

ROOT = Path(__file__).resolve().parents[1]
DRAWN = {
    "architecture.py": "architecture.svg",
    "performance_pictures.py": "cpu_scaling.svg",
    "picture.py": "picture.svg",
    "task_pictures.py": "tasks_roles.svg",
}
PRINTED = {"licences.py": "glassgpt[all]", "parallel_estimate.py": "GPUs"}
OTHERS = {
    "conf.py",
    "inspect_pictures.py",
    "lesson_pages.py",
    "notebook.py",
    "readme_outputs.py",
    "screenshots.py",
}
INSPECTED = ("trace", "attention", "intervene", "integrated", "direct")


def run(script: str, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "docs" / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def labels(svg: str) -> list[str]:
    return [
        "".join(one.itertext())
        for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def test_every_script_is_tested() -> None:
    assert {path.name for path in (ROOT / "docs").glob("*.py")} == DRAWN.keys() | PRINTED.keys() | OTHERS


def test_no_page_redirects_the_output_of_a_script_into_a_file() -> None:
    """A script that fails would leave the file empty."""
    places = [
        ROOT / "CONTRIBUTING.md",
        ROOT / "Makefile",
        *ROOT.glob("docs/*.*"),
        *ROOT.glob("recipes/*/*.md"),
    ]
    texts = {path: path.read_text("utf-8") for path in places if path.suffix in (".md", ".py", "")}
    assert [
        path.name for path, text in texts.items() if re.search(r"python docs/\S+ [^`\n]*> ?docs/", text)
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize("script", DRAWN)
def test_a_drawing_is_made_and_is_the_committed_one(script: str, tmp_path: Path) -> None:
    run(script, "-o", tmp_path / "made.svg")
    made = (tmp_path / "made.svg").read_text("utf-8")
    committed = (ROOT / "docs" / DRAWN[script]).read_text("utf-8")
    assert labels(made) == labels(committed)
    assert list(tmp_path.iterdir()) == [tmp_path / "made.svg"]


@pytest.mark.slow
def test_the_picture_counts_every_block(tmp_path: Path) -> None:
    run("picture.py", "default", "-o", tmp_path / "made.svg")
    found = labels((tmp_path / "made.svg").read_text("utf-8"))
    assert [name for name in found if re.fullmatch(r"h\.\d+", name)] == ["h.0", "h.1", "h.2", "h.11"]
    assert {"8 more", "blocks", "…"} <= set(found)


@pytest.mark.slow
def test_a_script_that_fails_leaves_the_picture_as_it_was(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    picture.write_text("old")
    run("picture.py", "no-such-model/at-all-here.gguf", "-o", picture, code=1)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("picture.svg", "old")]


@pytest.mark.slow
@pytest.mark.parametrize("script", PRINTED)
def test_a_table_is_printed(script: str) -> None:
    assert PRINTED[script] in run(script).stdout


@pytest.mark.slow
def test_the_figures_of_inspect(tmp_path: Path) -> None:
    run("inspect_pictures.py", "-o", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"inspect_{name}.svg" for name in INSPECTED}
    for path in tmp_path.iterdir():
        assert labels(path.read_text("utf-8")) == labels((ROOT / "docs" / path.name).read_text("utf-8"))


def stored_outputs(path: Path) -> list[list[str]]:
    """The kinds of output of each code cell."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [sorted(cell["outputs"][-1]["data"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_has_stored_figures() -> None:
    figure = ["image/svg+xml", "text/plain"]
    found = stored_outputs(ROOT / "examples" / "look_inside.ipynb")
    assert found == [figure, figure, ["text/plain"], *[figure] * 5]


@pytest.mark.slow
def test_the_notebook_is_executed_and_stored(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed: make test installs it")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: make test installs it")
    run("notebook.py", "-o", tmp_path / "made.ipynb")
    assert stored_outputs(tmp_path / "made.ipynb") == stored_outputs(ROOT / "examples" / "look_inside.ipynb")


NO_FIGURE = ["text/plain"]
FIGURE = ["image/svg+xml", "text/plain"]
EXPERIMENTS = {
    "induction": [[], FIGURE, NO_FIGURE, FIGURE, [], []],
    "indirect_objects": [NO_FIGURE, [], FIGURE, FIGURE, [], FIGURE],
    "steering": [NO_FIGURE, FIGURE, [], [], []],
}


def results(path: Path) -> list[list[str]]:
    """The kinds of the last value of each code cell; of one that only prints, none."""
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
    return [sorted(cell["outputs"][-1].get("data", ())) if cell["outputs"] else ["nothing"] for cell in cells]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_notebooks_of_experiments_have_stored_figures(name: str) -> None:
    assert results(ROOT / "examples" / f"{name}.ipynb") == EXPERIMENTS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_notebooks_of_experiments_are_executed(name: str, tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed: make test installs it")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: make test installs it")
    run("notebook.py", name, "-o", tmp_path / "made.ipynb")
    assert results(tmp_path / "made.ipynb") == EXPERIMENTS[name]
    printed = "".join(
        "".join(out["text"])
        for cell in json.loads((tmp_path / "made.ipynb").read_text("utf-8"))["cells"]
        for out in cell.get("outputs", ())
        if out["output_type"] == "stream"
    )
    told = {
        "induction": "head 5.5 looks one token back",
        "indirect_objects": "name that is not there: in 100%",
        "steering": "glad words",
    }
    assert told[name] in printed


@pytest.mark.slow
@pytest.mark.skipif(
    not native.is_available(), reason="the outputs shown are the native engine's, not built here"
)
def test_outputs_are_updated_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```console\n$ glassgpt tokens "The" --ids\n0\n```\n', "utf-8")
    run("readme_outputs.py", page)
    assert page.read_text("utf-8") == '```console\n$ glassgpt tokens "The" --ids\n453\n```\n'


@pytest.mark.slow
def test_screenshots(tmp_path: Path) -> None:
    pytest.importorskip("playwright", reason="playwright is not installed: make test installs it")
    from tests.explorer.browser import NoBrowser, launched

    try:
        with launched():
            pass
    except NoBrowser as why:
        pytest.skip(str(why))
    assert "tower, block" in run("screenshots.py", "nosuch", "-o", tmp_path, code=2).stderr
    run("screenshots.py", "tally", "-o", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"tally-{kind}.png" for kind in ("light", "dark", "phone")
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
