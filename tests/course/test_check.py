"""`course.check`: every known mistake gets its sentence, and whatever a reader's function does, there is no
traceback."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glassgpt import course
from glassgpt.course.exercises import EXERCISES
from glassgpt.errors import SettingError

ALL = list(EXERCISES.values())
NAMES = [exercise.name for exercise in ALL]


@pytest.mark.parametrize("exercise", ALL, ids=NAMES)
def test_the_solution_passes_and_every_mistake_gets_its_own_sentence(exercise):
    assert course.check(exercise.name, exercise.solution).passed
    assert len(exercise.mistakes) >= 5
    for mistake in exercise.mistakes:
        verdict = course.check(exercise.name, mistake.function)
        assert not verdict.passed
        assert verdict.sentence == f"{exercise.name}: {mistake.sentence}"


def test_there_are_at_least_25_functions_and_each_has_a_task_and_hints():
    assert len(ALL) >= 25
    for exercise in ALL:
        assert exercise.task.endswith("."), exercise.name
        assert exercise.hints, exercise.name
        ends = [mistake.sentence[-1] for mistake in exercise.mistakes]
        assert set(ends) <= set(".?)"), exercise.name


def endless():
    made = []
    made.append(made)
    return made


class NoLength:
    def __len__(self):
        raise RuntimeError("no length")

    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no ==")

    __hash__ = None

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")


class OwnList(list):
    def __len__(self):
        raise RuntimeError("no length")


class OwnFloat(float):
    def __format__(self, how):
        raise RuntimeError("no format")


class OwnError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class LastWords(BaseException):
    def __str__(self):
        raise SystemExit(4)


def raising(error):
    def function(*arguments):
        raise error

    return function


ODD = {
    "an endless list": endless,
    "an object without a length": NoLength,
    "a list whose length raises": lambda: OwnList([1.0]),
    "a float that cannot be written": lambda: OwnFloat(1.0),
    "a list of odd objects": lambda: [NoLength(), NoLength()],
    "an array of objects": lambda: np.array([NoLength(), None], dtype=object),
    "an array of texts": lambda: np.array(["a", "b"]),
    "a generator": lambda: (i for i in range(3)),
    "a function": lambda: len,
    "a class": lambda: dict,
    "a dict of odd objects": lambda: {NoLength: NoLength()},
    "a complex array": lambda: np.array([1j, 2]),
    "an empty array": lambda: np.zeros((0, 3)),
    "an array of more numbers than fit in memory": lambda: np.broadcast_to(np.float32(1), (10**14,)),
    "a matrix of such rows": lambda: np.broadcast_to(np.float32(1), (2, 10**14)),
    "a masked array": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "a structured array": lambda: np.zeros(2, dtype=[("a", float)]),
    "dates": lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
    "a huge number": lambda: 10**5000,
    "NaN": lambda: float("nan"),
    "a text": lambda: "x" * 10**6,
    "bytes": lambda: b"\xff\xfe",
    "a set": lambda: {1, 2},
    "True": lambda: True,
    "Ellipsis": lambda: ...,
}


@pytest.mark.parametrize("odd", ODD)
def test_whatever_a_function_returns_is_described(odd):
    for exercise in ALL:
        if exercise.name in ("gpt2", "generate"):
            continue  # each of their mistakes takes long
        verdict = course.check(exercise.name, lambda *arguments: ODD[odd]())
        assert not verdict.passed, exercise.name
        assert verdict.sentence.startswith(f"{exercise.name}: ")
        assert "\n" not in verdict.sentence
        assert len(verdict.sentence) < 600


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no\nway"),
        OwnError(),
        LastWords(),
        SystemExit(3),
        GeneratorExit(),
        BaseExceptionGroup("both", [KeyError("a"), SystemExit(1)]),
        RecursionError("deep"),
        MemoryError(),
        StopIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_function_raises_is_described(error):
    verdict = course.check("softmax", raising(error))
    assert not verdict.passed
    assert type(error).__name__ in verdict.sentence
    assert "\n" not in verdict.sentence


def test_control_c_ends_a_check():
    with pytest.raises(KeyboardInterrupt):
        course.check("softmax", raising(KeyboardInterrupt()))


def test_a_function_that_fills_a_list_with_itself():
    def function(ids):
        ids.append(ids)
        return {}

    assert "changes its argument" in course.check("count_pairs", function).sentence


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("softmax", lambda x: None, "not written yet"),
        ("softmax", 3, "not a function"),
        ("softmax", lambda: 1, "it takes ()"),
        ("softmax", lambda x, y: 1, "it takes (x, y)"),
        ("softmax", lambda x: course.draw, "type module"),
        ("softmax", lambda x: (np.exp(x - x.max(-1, keepdims=True)) / 2).tolist(), "np.array(...)"),
        ("softmax", lambda x: np.full(x.shape, np.nan), "NaN"),
        ("softmax", lambda x: np.zeros(x.shape, int), "whole numbers where decimal numbers"),
        ("softmax", lambda x: np.zeros((1, 2, 3)), "shape is (1, 2, 3)"),
        ("softmax", lambda x: 3 * EXERCISES["softmax"].solution(x), "Every number is 3 times"),
        ("cosine", lambda a, b: None if len(a) > 2 else EXERCISES["cosine"].solution(a, b), "returns None"),
        ("cosine", lambda a, b: a * b * 7, "array of shape (3,) where the number"),
        ("merge", lambda ids, pair, new: 7, "7 where a list is expected"),
        ("merge", lambda ids, pair, new: [1, 2], "items where"),
        ("count_pairs", lambda ids: [], "where a dict is expected"),
        ("text_bytes", lambda text: [0.5] * len(text.encode()), "decimal"),
        ("scaled_scores", lambda q, k: 1 / 0, "ZeroDivisionError: division by zero"),
        ("scaled_scores", lambda q, k: unknown, "Define it inside the function"),  # noqa: F821
        ("scaled_scores", lambda q, k: q @ k, "they have to change places"),
        ("gelu", lambda x: math.tanh(x), "Functions of math take one number"),
        ("softmax", lambda x: np.exp(x) / np.exp(x).sum(-1), "keepdims=True"),
        ("softmax", lambda x: np.exp(x - max(x)) / sum(np.exp(x - max(x))), "want single numbers"),
        ("split_heads", lambda x, n: x.reshape(len(x), n, x.shape[1] / n), "// gives a whole one"),
        ("count_pairs", lambda ids: {[1, 2]: 1}, "take a tuple"),
        ("count_pairs", lambda ids: ids[len(ids)], "beyond the end"),
        ("mlp", lambda x, w, layer: w["c_fc.weight"], "list(weights)"),
        ("gpt2", lambda i, w, n, h, cache=None: w[w["wte.weight"]], "wants one table"),
        (
            "embed",
            lambda ids, wte, wpe, start=0: wte[ids] + wpe[start : start + ids.shape[0]],
            "len(x) works",
        ),
        ("softmax", lambda x: x[..., 99], "end of an axis"),
    ],
)
def test_the_first_difference_is_said(name, function, words):
    assert words in course.check(name, function).sentence


def test_a_change_of_an_argument_is_refused():
    def softmax(x):
        x -= x.max(axis=-1, keepdims=True)
        made = np.exp(x)
        return made / made.sum(axis=-1, keepdims=True)

    assert "changes its argument" in course.check("softmax", softmax).sentence


def test_a_forgotten_return_is_not_called_unwritten():
    def softmax(x):
        made = np.exp(x - x.max(axis=-1, keepdims=True))
        made = made / made.sum(axis=-1, keepdims=True)

    def gpt2(ids, weights, n_layer, n_head, cache=None):
        start = cache[0][0].shape[1] if cache else 0  # noqa: F841
        ...

    assert "Is the `return` missing?" in course.check("softmax", softmax).sentence
    assert "not written yet" in course.check("gpt2", gpt2).sentence


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("merge", lambda ids, pair, new: ids.append(new) or ids, "list(x)"),
        ("sgd_step", lambda p, g, rate: p.update(w=0) or p, "a new dict"),
    ],
)
def test_how_to_copy_depends_on_what_was_changed(name, function, words):
    assert words in course.check(name, function).sentence


def test_an_unknown_exercise_is_one_line_with_advice():
    with pytest.raises(SettingError, match=r"no exercise is called 'sofmax'. Did you mean 'softmax'?"):
        course.check("sofmax", len)
    with pytest.raises(SettingError, match="There are"):
        course.hint(3)


def test_hints_open_one_after_another_and_the_solution_can_be_pasted():
    first, second, third = (course.hint("attention") for _ in range(3))
    assert first.count("Hint") == 1
    assert second.count("Hint") == 2
    assert "course.solution" in third
    assert course.hint("attention") == third
    names: dict = {"np": np, "math": __import__("math"), "softmax": EXERCISES["softmax"].solution}
    exec(course.solution("attention"), names)
    assert course.check("attention", names["attention"]).passed


def test_functions_of_gpt2_are_compared_with_the_models_own_numbers():
    """A function that is right for other shapes only fails on the shipped model."""
    right = EXERCISES["layer_norm"].solution

    def narrow(x, weight, bias):
        return right(x, weight, bias) if x.shape[-1] < 100 else x

    verdict = course.check("layer_norm", narrow)
    assert not verdict.passed
    assert "Wrong for 1 of" in verdict.sentence


def test_the_course_needs_no_torch():
    import subprocess
    import sys

    script = "import sys; from glassgpt import course; course.trace(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=600).returncode == 0
