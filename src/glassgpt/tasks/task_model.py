"""A language model that may have been tuned for a task."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from glassgpt.generate.language_model import LanguageModel
from glassgpt.model import GPT2
from glassgpt.tasks.definition import Task


class TaskModel(LanguageModel, Protocol):
    classifier: np.ndarray | None  # (classes, C): the head of a classifier

    @property
    def task(self) -> Task | None: ...
    @property
    def torch_model(self) -> GPT2: ...
