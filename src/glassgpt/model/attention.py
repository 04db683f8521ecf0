"""The registry of attention classes: `Config.attention` names one of them.

    @register_attention("local")
    class LocalAttention(Attention):
        def attend(self, q, k, v, mask, positions, past, tap): ...

A variant is a subclass of `gpt2.Attention` that overrides `attend`. The fast paths leave it alone
(`fast_path.py`), so it trains, decodes, is scored and traced by the plain forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from glassgpt.config import ATTENTIONS

if TYPE_CHECKING:
    from glassgpt.model.gpt2 import Attention

_CLASSES: dict[str, type[Attention]] = {}
Class = TypeVar("Class", bound="type[Attention]")


def register_attention(name: str) -> Callable[[Class], Class]:
    """Let `Config(attention=name)` build its blocks with the decorated class."""

    def register(cls: Class) -> Class:
        if name in _CLASSES:
            raise ValueError(f"attention {name!r} is registered already, as {_CLASSES[name].__name__}.")
        _CLASSES[name] = cls
        if name not in ATTENTIONS:
            ATTENTIONS.append(name)
        return cls

    return register


def attention_class(name: str) -> type[Attention]:
    return _CLASSES[name]
