"""The shipped models as the course uses them: in numpy and float32, without PyTorch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from glassgpt.gpt import GPT
    from glassgpt.inspect.traces.trace import Trace

SENTENCE = "A king must obey the orders given him"


@cache
def model(name: str = "tiny") -> GPT:
    """A model whose every number can be looked at: `course.model()` or `course.model("default")`."""
    from glassgpt.gpt import load

    return load(name, backend="numpy", dtype="float32")


def weights(name: str = "tiny") -> dict[str, np.ndarray]:
    """The parameters of a model by OpenAI's names; matrices are (in, out)."""
    own: Any = model(name).model
    return dict(own.weights)


def shape(name: str = "tiny") -> tuple[int, int]:
    """The number of blocks and of heads."""
    config = model(name).config
    return config.n_layer, config.n_head


@cache
def trace(text: str = SENTENCE, name: str = "tiny") -> Trace:
    """Every step of a model for a text."""
    return model(name).trace(text)
