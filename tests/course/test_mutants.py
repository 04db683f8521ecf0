"""Solutions that the check has never seen: wrong ones get the right sentence, right ones pass."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from glassgpt import course
from glassgpt.course.exercises import EXERCISES

FILES = sorted((Path(__file__).parent / "mutants").glob("lesson*.py"))
MODULES = [import_module(f"tests.course.mutants.{path.stem}") for path in FILES]
MUTANTS = {name: made for module in MODULES for name, made in module.MUTANTS.items()}
OTHER_STYLE = {name: function for module in MODULES for name, function in module.OTHER_STYLE.items()}


def test_at_least_25_functions_have_five_mutants_each():
    assert len(MUTANTS) >= 25
    assert set(MUTANTS) <= set(EXERCISES)
    assert all(len(made) >= 5 for made in MUTANTS.values())


def test_every_function_has_a_right_solution_in_another_style():
    assert set(OTHER_STYLE) == set(EXERCISES)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_get_the_sentence_that_names_them(name):
    for number, (function, words) in enumerate(MUTANTS[name]):
        verdict = course.check(name, function)
        assert not verdict.passed, f"mutant {number}: {words}"
        assert words in verdict.sentence, f"mutant {number}"


@pytest.mark.parametrize("name", OTHER_STYLE)
def test_a_right_solution_in_another_style_passes(name):
    verdict = course.check(name, OTHER_STYLE[name])
    assert verdict.passed, verdict
