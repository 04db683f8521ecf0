"""`check`, `hint` and `solution`: a reader's function beside the course's own."""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassgpt.course.compare import Outcome, outcome_difference, run
from glassgpt.course.exercise import Exercise, Function
from glassgpt.course.exercises import EXERCISES
from glassgpt.errors import SettingError, short_repr

_hints_shown: dict[str, int] = {}  # by exercise: each `hint` opens one more


@dataclass(frozen=True)
class Verdict:
    """Whether a function is right, and a sentence about it."""

    passed: bool
    sentence: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.sentence


class Note(str):
    """Words that a notebook shows as they are."""

    def __repr__(self) -> str:
        return str(self)


def find_exercise(name: str) -> Exercise:
    exercise = EXERCISES.get(name) if isinstance(name, str) else None
    if exercise is None:
        near = difflib.get_close_matches(str(name), EXERCISES, 1)
        advice = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(EXERCISES)}."
        raise SettingError(f"no exercise is called {short_repr(name)}. {advice}")
    return exercise


def check(name: str, function: object) -> Verdict:
    """Compare a function with the course's own on several inputs, and say what is wrong with it."""
    exercise = find_exercise(name)
    if not callable(function):
        return Verdict(
            False, f"{name}: this is not a function. Hand over the function itself: check({name!r}, {name})."
        )
    problem = signature_problem(exercise, function)
    if problem is not None:
        return Verdict(False, f"{name}: {problem}")
    inputs = exercise.inputs(np.random.default_rng(1))
    expected = [run(exercise.solution, arguments, exercise.changes) for arguments in inputs]
    given = [run(function, arguments, exercise.changes) for arguments in inputs]
    if all(outcome.value is None for outcome in given) and any(outcome.error is None for outcome in given):
        if is_written(function):
            return Verdict(False, f"{name}: it returns None. Is the `return` missing? {exercise.task}")
        return Verdict(False, f"{name}: not written yet, it returns None. {exercise.task}")
    differences = [
        outcome_difference(right, own, exercise.tolerance) for right, own in zip(expected, given, strict=True)
    ]
    first = next((n for n, words in enumerate(differences) if words is not None), None)
    if first is None:
        return Verdict(True, f"{name}: right, on all {len(inputs)} inputs.")
    sentence = find_mistake(exercise, inputs, given)
    if sentence is None:
        wrong = sum(words is not None for words in differences)
        where = "" if wrong == len(inputs) else f" (Wrong for {wrong} of {len(inputs)} inputs.)"
        sentence = f"{differences[first]}{where}"
    return Verdict(False, f"{name}: {sentence}")


def is_written(function: Function) -> bool:
    """Whether there is more than the exercise's `...` (where the source is unknown: no)."""
    code = getattr(function, "__code__", None)
    if code is None or not (code.co_names or code.co_nlocals > code.co_argcount):
        return False
    try:
        return re.search(r"^\s+\.\.\.", inspect.getsource(function), re.M) is None
    except (OSError, TypeError):
        return False


def signature_problem(exercise: Exercise, function: Function) -> str | None:
    wanted = inspect.signature(exercise.solution)
    try:
        own = inspect.signature(function)
    except (TypeError, ValueError):  # functions written in C have none
        return None
    try:
        own.bind(*wanted.parameters)
    except TypeError:
        return f"it takes {own} where {wanted} is expected."
    return None


def find_mistake(exercise: Exercise, inputs: Any, given: list[Outcome]) -> str | None:
    """The sentence of the first known mistake that gives the same results for all inputs."""
    for mistake in exercise.mistakes:
        for arguments, own in zip(inputs, given, strict=True):
            made = run(mistake.function, arguments, exercise.changes)
            if outcome_difference(made, own, exercise.tolerance) is not None:
                break
        else:
            return mistake.sentence
    return None


def hint(name: str) -> Note:
    """The next hint for an exercise: each call opens one more."""
    exercise = find_exercise(name)
    number = min(_hints_shown.get(name, 0) + 1, len(exercise.hints))
    _hints_shown[name] = number
    lines = [f"Hint {n + 1} of {len(exercise.hints)}: {exercise.hints[n]}" for n in range(number)]
    if number == len(exercise.hints):
        lines.append(f'That was the last one. The solution: course.solution("{name}")')
    return Note("\n".join(lines))


def solution(name: str) -> Note:
    """The source of the course's own function."""
    return Note(inspect.getsource(find_exercise(name).solution).rstrip())


def use(name: str, function: Function) -> Function:
    """Check a function and print the sentence. Returns it if it is right, otherwise the course's own, so that
    the lesson goes on."""
    verdict = check(name, function)
    print(verdict)
    if verdict.passed:
        return function
    print("The lesson goes on with the course's own function.")
    return find_exercise(name).solution
