"""`glassgpt course`: lists, copies without overwriting, opens."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from glassgpt.cli import main
from glassgpt.cli.commands import course as command
from glassgpt.course.lessons import lessons
from glassgpt.course.page import page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def opened(monkeypatch):
    """What was opened in Jupyter or in the browser."""
    calls = []

    def run(arguments, check):
        calls.append(arguments)
        return subprocess.CompletedProcess(arguments, 0)

    monkeypatch.setattr(command.subprocess, "run", run)
    monkeypatch.setattr(command.webbrowser, "open", calls.append)
    return calls


def test_the_list(capsys):
    assert main(["course"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in out] == [lesson.number for lesson in lessons()]
    assert out[0] == " 1  Text, bytes, tokens"


def test_a_copy_is_never_overwritten(folder, capsys):
    assert main(["course", "1", "--no-open"]) == 0
    copy = folder / "glassgpt-course" / "01-tokens.ipynb"
    assert capsys.readouterr().out.strip() == str(copy.relative_to(folder))
    assert copy.read_bytes() == (ROOT / "course" / "01-tokens.ipynb").read_bytes()
    copy.write_text("mine")
    assert main(["course", "1", "--no-open"]) == 0
    assert "stays as it is" in capsys.readouterr().err
    assert copy.read_text() == "mine"


def test_jupyter_opens_it_where_it_is_installed(monkeypatch, opened):
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    assert main(["course", "2", "--to", "here"]) == 0
    assert opened[0][1:3] == ["-m", "jupyterlab"]
    assert Path(opened[0][3]) == Path("here/02-embeddings.ipynb")


def test_without_jupyter_the_browser_shows_a_page(monkeypatch, opened, folder, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["course", "3"]) == 0
    shown = folder / "glassgpt-course" / "03-attention.html"
    assert opened == [shown.as_uri()]
    assert shown.read_text("utf-8").count("<svg") >= 3
    assert "pip install jupyterlab" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["99"], "there is no lesson 99. Lessons are 1 to "),
        (["0"], "there is no lesson 0"),
        (["-1"], "lesson"),
        (["one"], "one"),
        (["1", "--to", "file"], "file is a file. Name a folder"),
    ],
)
def test_bad_input_is_one_line(arguments, words, folder, capsys):
    (folder / "file").write_text("")
    assert main(["course", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.name)
def test_the_page_has_every_cell(lesson):
    html = page(lesson.path)
    cells = json.loads(lesson.path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert html.count('<pre class="in">') == len(code)
    assert "<script" not in html
    assert re.search(r'src="http|@import|url\(', html) is None, "nothing is fetched"


@pytest.mark.parametrize(("version", "there"), [("standard", True), ("editable", False)])
def test_the_notebooks_are_in_the_wheel(version, there, monkeypatch):
    """A checkout finds them where they are, so an editable install leaves them out."""
    metadata = pytest.importorskip("hatchling.metadata.core")
    monkeypatch.syspath_prepend(str(ROOT))
    import hatch_build

    class WithoutEngine(hatch_build.GlassGPTBuildHook):
        def add_engine(self, build_data):
            pass

    hook = WithoutEngine(str(ROOT), {}, None, metadata.ProjectMetadata(str(ROOT), None), "", "wheel", None)
    data = {"dependencies": [], "force_include": {}, "artifacts": []}
    hook.initialize(version, data)
    wanted = {f"glassgpt/course/notebooks/{lesson.name}" for lesson in lessons()}
    assert set(data["force_include"].values()) == (wanted if there else set())
    assert all(Path(source).is_file() for source in data["force_include"])
