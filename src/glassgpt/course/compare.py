"""Run a reader's function and say in which way its result differs from the expected one.

The function may return anything: an endless list, an object whose length raises. Only exact types are looked
into, and never deeper than the expected value.
"""

from __future__ import annotations

import copy
import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassgpt.course.exercise import Arguments, Function
from glassgpt.errors import short_repr

SMALL = 1 << 16  # numbers in an array that is copied for each call; larger ones are lent read-only
KINDS = {"b": "True and False", "i": "whole numbers", "u": "whole numbers", "f": "decimal numbers"}


# What Python or numpy say about a beginner's mistake, and what it usually means.
ADVICE = (
    (
        TypeError,
        r"only \S+ arrays",
        "Functions of math take one number; np.exp, np.sqrt, np.tanh take arrays.",
    ),
    (
        ValueError,
        "broadcast",
        "Print both shapes. keepdims=True in a sum, mean or max, or [:, None], may make them fit.",
    ),
    (
        ValueError,
        "core dimension",
        "Print both shapes: in a @ b the last axis of a has to be as long as the last but one of b. Perhaps "
        "one of them has to be turned, or they have to change places.",
    ),
    (ValueError, "truth value", "max, min and `if` want single numbers: x.max(axis=-1), np.where."),
    (TypeError, "interpreted as an integer", "A division by / gives a decimal number; // gives a whole one."),
    (
        TypeError,
        "unhashable type: 'numpy",
        "An array is used as a key of a dict. Perhaps a function got all of `weights` where it wants one "
        'table, such as weights["wte.weight"].',
    ),
    (
        TypeError,
        "positional argument",
        "Compare the call with the line of that function that begins with `def`.",
    ),
    (TypeError, r"has no len\(\)", "A single number has no length: [x] is a list with one item."),
    (
        AttributeError,
        "'list' object",
        "This argument may be a list: len(x) works for lists and arrays alike.",
    ),
    (
        AttributeError,
        "'NoneType' object has no attribute 'random'",
        "At temperature 0 nothing is drawn, and rng may be None.",
    ),
    (
        ValueError,
        "equal division",
        "np.split cuts between rows, axis 0, unless you say axis=-1.",
    ),
    (
        ValueError,
        "values to unpack",
        "`a, b, c = x` takes the rows of an array apart. np.split(x, 3, axis=-1) cuts each row in three.",
    ),
    (
        ValueError,
        "inhomogeneous",
        "The rows have different lengths, so they make no array. Take one row at a time.",
    ),
    (
        ValueError,
        "bytes must be in range",
        "An id above 255 may join ids that are merged themselves: take those apart, too.",
    ),
    (
        ValueError,
        "empty sequence|is empty",
        "There is nothing left to choose from. Ask first whether it is empty.",
    ),
    (TypeError, "unhashable", "A list cannot be a key of a dict: take a tuple, (a, b)."),
    (
        IndexError,
        "for axis",
        "An index lies beyond the end of an axis. Print the shape: perhaps it belongs to another axis, or "
        "one row was meant, such as x[-1].",
    ),
    (IndexError, "", "An index lies beyond the end. Look at the last round of the loop."),
    (KeyError, r"'(h\.\d|wte|wpe|ln_|mlp|attn)|\.(weight|bias)", "All names of weights: list(weights)."),
    (NameError, "", "Define it inside the function, or in a cell that you have run."),
)


COPY: dict[type | None, str] = {
    np.ndarray: "Work on a copy: `x = x + 1` and `x.copy()` make a new array, `x += 1` does not.",
    list: "Work on a copy: `list(x)` and `x + [y]` make a new list, `x.append(y)` and `x += [y]` do not.",
    dict: "Build a new dict, with new arrays: `x = x + 1` makes one, `x += 1` does not.",
}


@dataclass(frozen=True)
class Outcome:
    """What a call returned or raised, and what it did to its arguments."""

    value: Any = None
    error: BaseException | None = None
    after: tuple[Any, ...] = ()  # the arguments that it was supposed to change
    changed: int | None = None  # the number of an argument that it was not supposed to change
    changed_kind: type | None = None  # what that argument is


def run(function: Function, arguments: Arguments, changes: tuple[int, ...] = ()) -> Outcome:
    lent = tuple(lend(argument) for argument in arguments)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = function(*lent)
    except KeyboardInterrupt:  # ends the check
        raise
    except BaseException as error:  # also SystemExit and GeneratorExit
        return Outcome(error=error)
    after = tuple(lent[i] for i in changes if i < len(lent))
    for number, (before, now) in enumerate(zip(arguments, lent, strict=True)):
        if number not in changes and is_changed(before, now):
            return Outcome(value, None, after, number, type(before))
    return Outcome(value, None, after)


def lend(argument: Any) -> Any:
    """A copy; of a large array, a view that cannot be written to."""
    if isinstance(argument, np.ndarray):
        if argument.size <= SMALL:
            return argument.copy()
        view = argument.view()
        view.flags.writeable = False
        return view
    if type(argument) is dict:
        return {key: lend(value) for key, value in argument.items()}
    if type(argument) in (list, tuple):
        return type(argument)(lend(value) for value in argument)
    return argument if callable(argument) else copy.deepcopy(argument)


def is_changed(before: Any, now: Any) -> bool:
    """Whether an argument is not what it was. `now` is what `lend` made, with anything put into it."""
    if isinstance(before, np.ndarray):
        if type(now) is not np.ndarray or now.flags.writeable:
            return array_difference(before, now, 0.0) is not None
        return False
    if type(before) is dict and type(now) is dict:
        return list(before) != list(now) or any(is_changed(before[key], now[key]) for key in before)
    if type(before) in (list, tuple) and type(before) is type(now):
        return len(before) != len(now) or any(is_changed(*pair) for pair in zip(before, now, strict=True))
    return isinstance(before, int | float | str | bytes) and difference(before, now, 0.0) is not None


def outcome_difference(expected: Outcome, given: Outcome, tolerance: float) -> str | None:
    """A sentence about the first difference; None if there is none."""
    if given.error is not None:
        if type(given.error) is type(expected.error):
            return None
        return f"It raises {describe_error(given.error)}.{advice_for(given.error)}"
    if expected.error is not None:
        return (
            f"It should refuse this with a {type(expected.error).__name__}, and returns {show(given.value)}."
        )
    if given.changed != expected.changed:
        return f"It changes its argument. {COPY.get(given.changed_kind, COPY[np.ndarray])}"
    found = difference(expected.value, given.value, tolerance)
    if found is not None:
        return found
    for before, after in zip(expected.after, given.after, strict=True):
        found = difference(before, after, tolerance)
        if found is not None:
            return f"The result is right, but an argument that it has to change is not: {found}"
    return None


def describe_error(error: BaseException) -> str:
    """`TypeError: ...` on one line; an error may be unable to say what it is."""
    try:
        words = " ".join(str(error).split())[:200].rstrip(".")
    except KeyboardInterrupt:
        raise
    except BaseException:
        words = ""
    place = error.__traceback__
    line = None
    while place is not None:  # the last line in a notebook's cell or the reader's file
        if "site-packages" not in place.tb_frame.f_code.co_filename and place.tb_next is None:
            line = place.tb_lineno
        place = place.tb_next
    where = "" if line is None else f" (line {line})"
    return type(error).__name__ + (f": {words}" if words else "") + where


def advice_for(error: BaseException) -> str:
    words = describe_error(error)
    for kind, pattern, advice in ADVICE:
        if isinstance(error, kind) and re.search(pattern, words):
            return f" {advice}"
    return ""


def difference(expected: Any, given: Any, tolerance: float) -> str | None:
    if isinstance(expected, np.ndarray):
        return array_difference(expected, given, tolerance)
    if given is None and expected is not None:
        return "It returns None. Does every way through it end with `return`?"
    if type(expected) is dict:
        return dict_difference(expected, given, tolerance)
    if type(expected) in (list, tuple):
        return list_difference(expected, given, tolerance)
    if isinstance(expected, str | bytes) or expected is None:
        if type(given) is type(expected) and given == expected:
            return None
        return f"It returns {show(given)} where {show(expected)} is expected."
    return number_difference(expected, given, tolerance)


def number_difference(expected: Any, given: Any, tolerance: float) -> str | None:
    if type(given) is np.ndarray and given.shape == ():
        given = given[()]
    if type(given) is np.ndarray:
        shape, number = given.shape, show(expected)
        return (
            f"It returns an array of shape {shape} where the number {number} is expected: is a sum missing?"
        )
    if not isinstance(given, bool | int | float | np.generic) or isinstance(given, np.flexible | np.object_):
        return f"It returns {show(given)} where the number {show(expected)} is expected."
    if isinstance(expected, bool | np.bool) != isinstance(given, bool | np.bool):
        return f"It returns {show(given)} where {show(expected)} is expected."
    if isinstance(expected, int | np.integer) and isinstance(given, float | np.floating):
        return f"It returns the decimal {show(given)} where the whole number {show(expected)} is expected."
    return array_difference(np.asarray(expected), np.asarray(given), tolerance)


def list_difference(expected: Any, given: Any, tolerance: float) -> str | None:
    if type(given) not in (list, tuple) and (type(given) is not np.ndarray or given.ndim == 0):
        return f"It returns {show(given)} where a list is expected."
    if len(given) != len(expected):
        return f"It returns {len(given)} items where {len(expected)} are expected."
    # The rows of an array one by one: one that was broadcast may stand for more numbers than fit in memory.
    for number, (one, other) in enumerate(zip(expected, given, strict=True)):
        found = difference(one, other, tolerance)
        if found is not None:
            return f"Item {number} of its result: {lower(found)}"
    return None


def dict_difference(expected: Any, given: Any, tolerance: float) -> str | None:
    if type(given) is not dict:
        return f"It returns {show(given)} where a dict is expected."
    for key in expected:
        if key not in given:
            return f"The dict has no {short_repr(key)}."
        found = difference(expected[key], given[key], tolerance)
        if found is not None:
            return f"At {short_repr(key)} of the dict: {lower(found)}"
    if len(given) > len(expected):
        extra = next(key for key in given if key not in expected)
        return f"The dict has {show(extra)}, which should not be there."
    return None


def array_difference(expected: np.ndarray, given: Any, tolerance: float) -> str | None:
    if given is None:
        return "It returns None. Does every way through it end with `return`?"
    if type(given) in (list, tuple):
        return (
            f"It returns a {type(given).__name__} where an array is expected: np.array(...) makes one of it."
        )
    if isinstance(given, np.generic | bool | int | float):
        given = np.asarray(given)
    if type(given) is not np.ndarray or given.dtype.kind not in KINDS:
        return f"It returns {show(given)} where an array of numbers is expected."
    if given.shape != expected.shape:
        return f"Its shape is {given.shape} where {expected.shape} is expected."
    if KINDS[given.dtype.kind] != KINDS[expected.dtype.kind]:
        kinds = KINDS[given.dtype.kind], KINDS[expected.dtype.kind]
        return "It returns {} where {} are expected.".format(*kinds)
    if expected.dtype.kind != "f":
        wrong = given != expected
    else:
        if np.isnan(given).any() and not np.isnan(expected).any():
            return "It returns NaN, not a number. What is divided by zero, or subtracted from infinity?"
        finite = np.abs(expected[np.isfinite(expected)])
        allowed = tolerance * max(float(finite.max(initial=0.0)), 1e-3)
        with np.errstate(invalid="ignore"):
            near = (given == expected) | (np.abs(given - expected) <= allowed)
            wrong = ~(near | np.isnan(expected) & np.isnan(given))
    if not wrong.any():
        return None
    return value_difference(expected, given, wrong)


def value_difference(expected: np.ndarray, given: np.ndarray, wrong: np.ndarray) -> str:
    """About arrays of the same shape: the pattern in the difference, if there is one, or the first number."""
    if expected.dtype.kind == "f" and expected.size > 1:
        big = np.abs(expected) > 1e-3 * np.abs(expected).max()
        if big.all() and np.isfinite(given).all() and np.isfinite(expected).all():
            ratios = given[big] / expected[big]
            if np.ptp(ratios) < 1e-4 * abs(ratios.mean()) and abs(ratios.mean()) > 1e-9:
                return f"Every number is {ratios.mean():.4g} times the expected one."
        if expected.ndim > 1 and expected.shape[-1] == expected.shape[-2]:
            turned = given.swapaxes(-1, -2)
            if np.allclose(turned, expected, rtol=1e-4, atol=1e-6):
                return "Rows and columns are exchanged."
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f" at {list(place)}" if place else ""
    amount = (
        f"{int(wrong.sum()):,} of {wrong.size:,} numbers differ; the first{where}" if wrong.size > 1 else "it"
    )
    words = f"{amount} is {show(given[place])} where {show(expected[place])} is expected."
    return words[0].upper() + words[1:]


def show(value: Any) -> str:
    """A value in a sentence. The repr of an unknown object may raise or never end: its type's name then."""
    if isinstance(value, np.generic) and value.dtype.kind in KINDS:
        value = value.item()
    if type(value) is float:
        return f"{value:.6g}"
    if value is None or type(value) in (bool, int, str, bytes):
        return short_repr(value)
    return "something of type " + type(value).__name__


def lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
