"""Numbers in the text of a lesson are computed in a cell above it, never typed."""

from __future__ import annotations

import re

import pytest

from tests.course.lessons import NAMES, output_text, stored

# Definitions, not results: bytes are 0 to 255, so that the first merge is 256; counting; a word for a token.
DEFINITIONS = {"0", "1", "-1", "255", "256"}
NOT_PROSE = (
    r"`[^`]*`",  # code
    r"\]\([^)]*\)",  # the address of a link
    r"https?://\S+",
    r"^#.*$",  # headings
    r"GPT-2",
    r"Llama[- ]\d+",
    r"UTF-8",
    r"float\d+|int\d+|bfloat16|fp\d+",
    r"\b[Ll]essons? \d+(?:(?: to |, | and )\d+)*",
    r"\babout (?:a quarter of an hour|half an hour)",
    r"Plan about \d+ minutes",
)
NUMBER = re.compile(r"(?<![\w.])-?\.?\d[\d,]*(?:\.\d+)?")


def numbers_of(text: str) -> list[str]:
    for pattern in NOT_PROSE:
        text = re.sub(pattern, " ", text, flags=re.M)
    return [found.rstrip(",") for found in NUMBER.findall(text)]


def value(number: str) -> float:
    return float(number.replace(",", ""))


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_in_a_cell_above(name):
    seen: set[float] = set()
    cells = stored(name)
    for place, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            seen |= values_in(cell)
            continue
        text = "".join(cell["source"])
        below = set()  # a question may name a number of the cell that it is about
        if place + 1 < len(cells) and "**Predict.**" in text:
            below = values_in(cells[place + 1])
        for number in numbers_of(text):
            known = number in DEFINITIONS or value(number) in seen or value(number) in below
            assert known, f"{name}: {number} is typed: {text!r}"


def values_in(cell):
    text = "".join(cell["source"]) + "\n" + "\n".join(map(output_text, cell["outputs"]))
    return {abs(value(found)) for found in re.findall(r"\d[\d,]*\.?\d*|\.\d+", text) if found.strip(",")}


def test_a_typed_number_is_found():
    assert numbers_of("GPT-2 has 124,439,808 parameters, lesson 3, `7`, 3.5 and .48.") == [
        "124,439,808",
        "3.5",
        ".48",
    ]
