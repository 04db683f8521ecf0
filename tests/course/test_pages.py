"""The lessons as pages of the documentation: docs/lesson_pages.py makes them from the notebooks."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "course").glob("*.ipynb"))
NAMES = [notebook.stem for notebook in NOTEBOOKS]


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("lesson_pages", ROOT / "docs" / "lesson_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_of(pages, notebook: Path) -> str:
    source = ["a stub"]
    pages.fill(None, f"course/{notebook.stem}", source)
    return source[0]


def test_every_notebook_has_its_page_and_every_page_its_notebook():
    stubs = {stub.stem for stub in (ROOT / "docs" / "course").glob("[0-9]*.md")}
    assert stubs == set(NAMES)
    listed = re.findall(r"^\d\d-[a-z-]+$", (ROOT / "docs/course/index.md").read_text("utf-8"), re.M)
    assert listed == NAMES


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=NAMES)
def test_a_page_has_everything_that_its_notebook_shows(pages, notebook):
    page = page_of(pages, notebook)
    assert f"`glassgpt course {int(notebook.name[:2])}`" in page
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        assert "".join(cell["source"]) in page
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                first = "".join(output["text"]).splitlines()[0]
                assert first.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in page


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=NAMES)
def test_drawings_stay_whole_and_say_what_they_show(pages, notebook):
    for drawing in re.findall(r'<div class="lesson-figure">\n(.*?)\n</div>', page_of(pages, notebook), re.S):
        assert "\n\n" not in drawing, "an empty line ends HTML in Markdown"
        assert re.match(r'<svg [^>]*role="img"', drawing)
        assert len(re.search(r"<title>(.*?)</title>", drawing)[1]) > 10


def test_other_pages_are_left_alone(pages):
    source = ["as it was"]
    for name in ("start", "course/index", "guide/07-sampling"):
        pages.fill(None, name, source)
    assert source == ["as it was"]


def test_markdown_in_code_and_signs_in_output_are_kept(pages):
    cells = [
        {"cell_type": "markdown", "source": ["# 3. Title\n", "words"]},
        {
            "cell_type": "code",
            "source": ['print("""```\n', '""")'],
            "outputs": [{"output_type": "stream", "text": ["a < b & c\n", "\n", "d"]}],
        },
    ]
    page = pages.to_markdown({"cells": cells}, 3)
    assert '````python\nprint("""```\n""")\n````' in page
    assert '<pre class="lesson-output">a &lt; b &amp; c\n\nd</pre>' in page


def test_a_page_is_read_again_when_its_notebook_changed(pages):
    read = os.stat(NOTEBOOKS[0]).st_mtime * 1e6
    names = [f"course/{NAMES[0]}", "start"]
    for stamp, expected in ((read + 1e6, []), (read - 1e6, names[:1])):
        found = []
        pages.outdated(None, SimpleNamespace(found_docs=names, all_docs=dict.fromkeys(names, stamp)), found)
        assert found == expected


def test_drawings_follow_the_pages_button_and_paper_is_light(pages):
    css = pages.css()
    screen, _, paper = css.partition("@media print")
    assert 'body[data-theme="dark"] .glassgpt .text{fill:#eceff4}' in screen
    assert "body[data-theme] .glassgpt .text{fill:#1b1f27}" in paper
