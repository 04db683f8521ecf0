"""The numbers that Python and the engine share."""

from __future__ import annotations

import re

import pytest

from glassgpt.backends.native import build, cache, weights
from glassgpt.model.numpy_gpt2 import GELU_A, GELU_B


def enum(name: str) -> dict[str, int]:
    """An enum of the C++ sources, by its names in lower case."""
    for header in sorted(build.SOURCES.glob("*.h")):
        found = re.search(rf"enum {name} : int {{([^}}]*)}}", header.read_text())
        if found is not None:
            pairs = (entry.split("=") for entry in found.group(1).split(","))
            return {key.strip().lower(): int(value) for key, value in pairs}
    raise AssertionError(f"no enum {name} in {build.SOURCES}")


def test_dtypes_and_wanted_logits() -> None:
    assert {dtype: i for i, dtype in enumerate(weights.DTYPES)} == enum("Dtype")
    assert enum("Wanted") == cache.WANTED


@pytest.mark.parametrize(
    ("activation", "name"),
    [("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu_fast", "gelu_tanh"),
     ("gelu", "gelu_erf"), ("relu", "relu"), ("silu", "silu"), ("swish", "silu"), ("tanh", "tanh")],
)  # fmt: skip
def test_activations(activation: str, name: str) -> None:
    assert weights.ACTIVATIONS[activation] == enum("Activation")[name]
    assert len(weights.ACTIVATIONS) == 8


def test_the_constants_of_gelu() -> None:
    header = (build.SOURCES / "kernels.h").read_text()
    constants = [float(value) for value in re.findall(r"GELU_[AB] = ([0-9.]+)f", header)]
    assert constants == [GELU_A, GELU_B]
