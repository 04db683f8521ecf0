"""Taps: how a caller looks inside the forward pass, and changes it.

Every step has a name (`h.3.attn.scores`). A tap is a function `tap(name, values) -> values` that is shown
each step and may return a changed one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array")
Tap = Callable[[str, "Tensor"], "Tensor"]


def within(tap: Callable[[str, Array], Array] | None, part: str) -> Callable[[str, Array], Array] | None:
    """The same tap for a part of the model, which does not know its own place in the model."""
    return None if tap is None else lambda name, x: tap(f"{part}.{name}", x)


def show(tap: Callable[[str, Array], Array] | None, name: str, x: Array) -> Array:
    """Let the tap see, and perhaps change, a step of the forward pass."""
    return x if tap is None else tap(name, x)
