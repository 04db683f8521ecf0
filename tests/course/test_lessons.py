"""Every lesson runs from top to bottom, without torch, and gives the stored outputs."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glassgpt import course
from glassgpt.course.exercises import EXERCISES
from glassgpt.course.my_file import names
from tests.course.lessons import COURSE, NAMES, builder, output_text, same, stored

BUILD = builder()
STUB = re.compile(r"\.\.\.  # your code")


def parsed(name):
    return BUILD.parse((COURSE / "source" / f"{name}.md").read_text("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_that_of_its_source(name):
    cells = parsed(name)
    assert [(cell.kind, cell.source) for cell in cells] == [
        (cell["cell_type"], "".join(cell["source"])) for cell in stored(name)
    ], f"run: python course/build.py {name[:2]}"


# The light install: torch cannot be imported.
WITHOUT_TORCH = """
import runpy, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """All lessons, run from top to bottom in one process."""
    folder = tmp_path_factory.mktemp("lessons")
    command = [sys.executable, "-c", WITHOUT_TORCH, str(COURSE / "build.py"), "-o", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(COURSE.parent / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_runs_without_torch_and_gives_its_stored_outputs(name, written):
    made = json.loads((written / f"{name}.ipynb").read_text("utf-8"))["cells"]
    for cell, was in zip(made, stored(name), strict=True):
        before, now = was.get("outputs", []), cell.get("outputs", [])
        assert len(before) == len(now), cell["source"]
        for old, new in zip(before, now, strict=True):
            old, new = output_text(old), output_text(new)
            assert same(old, new), f"{cell['source']}\n\nstored:\n{old[:2000]}\n\nnow:\n{new[:2000]}"


@pytest.mark.parametrize("name", NAMES)
def test_every_section_asks_before_it_shows(name):
    """A Predict, and after it a cell whose output answers."""
    cells = stored(name)
    asked = 0
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] != "markdown" or "**Predict.**" not in text.split("\n\n")[-1]:
            assert "\n**Predict.**" not in text or cell["cell_type"] == "code", f"{name}: {text[:80]}"
            continue
        asked += 1
        answer = cells[number + 1]
        assert answer["cell_type"] == "code", text
        assert answer["outputs"], f"{name}: nothing answers {text!r}"
    assert asked >= 6, f"{name} has {asked} questions"


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_says_what_it_shows(name):
    for cell in stored(name):
        for output in cell.get("outputs", ()):
            svg = "".join(output.get("data", {}).get("image/svg+xml", []))
            if svg:
                label = re.search(r"<title>([^<]+)</title>", svg)
                assert label is not None
                assert len(label[1]) > 10
                assert "prefers-color-scheme:dark" in svg, "light and dark"


def test_every_exercise_is_in_its_lesson():
    found = {}
    for name in NAMES:
        text = (COURSE / "source" / f"{name}.md").read_text("utf-8")
        for how, exercise in re.findall(r"= course\.(keep|use)\(\"(\w+)\"", text):
            found[exercise] = (int(name[:2]), how == "keep")
    assert found == {name: (exercise.lesson, exercise.keep) for name, exercise in EXERCISES.items()}


def solved(source):
    """The cell of an exercise as a reader leaves it who wrote the course's solution, up to the check."""
    check = re.search(r"^(\w+) = course\.(?:keep|use)\(.*\)$", source, re.M)
    return f"{course.solution(check[1])}\n\n\n{check[0]}\n"


@pytest.mark.slow
def test_a_reader_who_solves_everything_has_the_whole_model(tmp_path, monkeypatch):
    """The exercise cells of all lessons, in one folder."""
    monkeypatch.chdir(tmp_path)
    for lesson in NAMES:
        space = {"np": np, "math": math, "course": course}
        space |= {name: exercise.solution for name, exercise in EXERCISES.items()}
        for number, cell in enumerate(parsed(lesson)):
            if cell.kind == "code" and STUB.search(cell.source):
                BUILD.run_cell(solved(cell.source), space, f"<solved {lesson}, cell {number}>")
    text = Path("my_gpt2.py").read_text()
    for name in names():
        assert f"def {name}(" in text
    code = [line for line in text.splitlines() if line.strip()]
    assert len(code) <= 130, "about a hundred lines"
    if "generate" not in names():
        return
    environment = {"PYTHONPATH": str(COURSE.parent / "src"), "OMP_NUM_THREADS": "1", "PATH": ""}
    prompt = "The old house stood"
    done = subprocess.run(
        [sys.executable, "my_gpt2.py", prompt], capture_output=True, text=True, env=environment, check=True
    )
    command = [sys.executable, "-m", "glassgpt", "generate", prompt, "--model", "tiny", "--dtype", "float32"]
    command += ["--temperature", "0", "--max-new-tokens", "30"]
    engine = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert engine.stdout.strip().startswith(done.stdout.strip()[:60])
    assert done.stdout.strip() == engine.stdout.strip()


@pytest.mark.slow
def test_jupyter_keeps_a_function(tmp_path):
    """A function from a cell of a real kernel is found and written."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    source = course.solution("softmax") + '\n\n\nsoftmax = course.keep("softmax", softmax)'
    cells = ["import numpy as np\nfrom glassgpt import course", source, 'course.hint("softmax")']
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    patient = dict.fromkeys(("timeout", "startup_timeout", "iopub_timeout"), 600)
    nbclient.NotebookClient(notebook, kernel_name="python3", resources=resources, **patient).execute()
    assert "Written to my_gpt2.py" in notebook.cells[1].outputs[0].text
    assert course.solution("softmax") in (tmp_path / "my_gpt2.py").read_text()
    assert notebook.cells[2].outputs[0]["data"]["text/plain"].startswith("Hint 1 of")
