"""The exercises, one module for each lesson. Each has the reference solution as a reader would write it, inputs,
and the mistakes that people make, each with the sentence that names it."""

from __future__ import annotations

from importlib import import_module

from glassgpt.course.exercise import Exercise

MODULES = (
    "lesson01_tokens",
    "lesson02_embeddings",
    "lesson03_attention",
    "lesson04_heads",
    "lesson05_block",
    "lesson06_stack",
    "lesson07_sampling",
    "lesson08_cache",
    "lesson09_parameters",
    "lesson10_learning",
    "lesson11_family",
    "lesson12_beyond",
)


def collect() -> dict[str, Exercise]:
    """By name, in the order of the lessons."""
    found: dict[str, Exercise] = {}
    for module in MODULES:
        for exercise in import_module(f"{__name__}.{module}").EXERCISES:
            assert exercise.name not in found, f"two exercises are called {exercise.name}"
            found[exercise.name] = exercise
    return found


EXERCISES = collect()
