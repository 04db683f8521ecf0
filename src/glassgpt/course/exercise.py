"""What an exercise is: a task, a reference solution, inputs to try, and the mistakes that people make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Function = Callable[..., Any]
Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Mistake:
    """A wrong solution, and the sentence for a reader whose function returns the same."""

    function: Function
    sentence: str


@dataclass(frozen=True)
class Exercise:
    name: str  # of the function that the reader writes
    lesson: int
    task: str
    solution: Function
    inputs: Callable[[np.random.Generator], Sequence[Arguments]]
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, ...]
    keep: bool = False  # whether it is part of my_gpt2.py
    changes: tuple[int, ...] = ()  # the arguments that it is supposed to change: they are compared, too
    tolerance: float = 1e-5  # relative to the largest expected number: float32 rounds at 6e-8 a step
