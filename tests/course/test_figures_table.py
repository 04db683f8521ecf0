"""course/README.md and TEACHING.md name lessons and sections that exist, and their numbers are right."""

from __future__ import annotations

import re

import numpy as np
import pytest

from glassgpt.course.exercises import EXERCISES
from tests.course.lessons import COURSE, NAMES, stored

README = (COURSE / "README.md").read_text("utf-8")
TEACHING = (COURSE / "TEACHING.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\d+) \| ([^|]+) \|$", README, re.M)


def sections(number: int) -> dict[str, str]:
    (name,) = (name for name in NAMES if int(name[:2]) == number)
    text = (COURSE / "source" / f"{name}.md").read_text("utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_all_figures_are_there():
    illustrated, annotated = README.split("## The Annotated GPT-2")
    assert len(re.findall(r"^\|.*\| \d+ \|", illustrated, re.M)) >= 60
    assert len(re.findall(r"^\|.*\| \d+ \|", annotated, re.M)) >= 9
    assert len(set(ROWS)) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][:40])
def test_every_row_leads_to_a_section_with_a_live_cell(row):
    _, _, number, heading = row
    found = sections(int(number))
    assert heading in found, f"lesson {number} has {list(found)}"
    assert "```python" in found[heading]


def test_the_lessons_are_linked_by_their_names():
    linked = re.findall(r"\[(\d+)\. [^\]]+\]\((\d\d-[\w-]+)\.ipynb\)", README)
    assert [name for _, name in linked] == NAMES
    assert all(int(number) == int(name[:2]) for number, name in linked)


def test_what_teaching_projects_exists():
    for number, heading in re.findall(r"lesson (\d+), (?:up to )?\"([^\"]+)\"", TEACHING):
        assert heading in sections(int(number)), (number, heading)
    for name in re.findall(r"up to `(\w+)`", TEACHING):
        assert EXERCISES[name].keep, name


def test_the_answers_of_the_test():
    assert round(float(np.exp(3 - 1)), 1) == 7.4
    assert 768 * 2304 + 2304 == 1771776
    assert "1,771,776" in TEACHING
    assert -np.log2(1 / 8) == 3
    from glassgpt import tally

    assert f"{tally('gpt2').total:,}" in README
    assert all(stored(name) for name in NAMES)
