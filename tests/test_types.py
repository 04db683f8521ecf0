"""What a user's type checker says about a script: mypy --strict, with the errors that it should find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from glassgpt.generate.sampling.params import SamplingParams, SamplingParamsDict

SCRIPT = """\
import glassgpt

gpt = glassgpt.load("default")
scores = gpt.attribute("A robot must", " obey").scores.sum()
total: float = gpt.attribute("A robot must", " obey", "direct_logit_attribution").total
heads = gpt.attribute("A robot must", method="direct_logit_attribution").heads
difference = gpt.attribute("A robot must", (" obey", " not"), method="input_x_gradient").scores
text: str = gpt.generate("A robot must", temperature=0, top_k=None, stop="\\n").text
texts = [one.text for one in gpt.generate(["A", "B"], max_new_tokens=3, stop=["x"])]
for piece in gpt.stream("A robot must", seed=1, top_p=0.9):
    print(piece, end="")
summary: str = gpt.summarize("One. Two. Three.", sentences=2)
french: list[str] = gpt.translate(["One.", "Two."], to="fr", beams=4)
matrix = gpt.weights.W_V[5, 3] @ gpt.weights.W_O[5, 3]
gpt.generate("A robot must", temperatur=0)  # error: call-overload
gpt.generate("A robot must", top_p="high")  # error: call-overload
gpt.stream("A robot must", seeds=1)  # error: call-arg
gpt.summarize("One. Two.", sentence=1)  # error: call-overload
gpt.attribute("A robot must", " obey").heads  # error: attr-defined
"""


@pytest.mark.slow
def test_mypy_strict_finds_the_mistakes_of_a_script_and_no_others(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--config-file=", "script.py"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "MYPYPATH": str(Path(__file__).parents[1] / "src")},
    )  # fmt: skip
    found = {
        (int(line), code)
        for line, code in re.findall(r"^script.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.M)
    }
    expected = {
        (number, line.partition("# error: ")[2])
        for number, line in enumerate(SCRIPT.splitlines(), start=1)
        if "# error: " in line
    }
    assert found == expected, done.stdout + done.stderr


def test_the_keyword_arguments_are_the_settings() -> None:
    """An argument has its field's type; a tuple may also be given as a list."""
    arguments, fields = get_type_hints(SamplingParamsDict), get_type_hints(SamplingParams)
    assert list(arguments) == list(fields)
    for name, kind in fields.items():
        if not str(kind).startswith("tuple"):
            assert arguments[name] == kind, name
        else:
            assert get_args(kind)[0].__name__ in str(arguments[name])
