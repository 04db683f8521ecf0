"""The numbers that Python hands to the engine are those of its enums."""

from __future__ import annotations

import re

import pytest

from glassgpt.backends.native import build, cache, weights


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
