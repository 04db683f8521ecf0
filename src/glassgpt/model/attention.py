"""The registry of attention classes: `Config.attention` names one of them.

    @register_attention("window")
    class WindowAttention(Attention):
        def attend(self, q, k, v, inputs): ...

A variant is a subclass of `gpt2.Attention` that overrides `attend`. The fast paths leave it alone
(`fast_path.py`), so it trains, decodes, is scored and traced by the plain forward pass. Those of this package
(`BUILT_IN`) are imported when a model is built with them; docs/attention.md presents them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from glassgpt.config import ATTENTIONS, AttentionKind
from glassgpt.config.variants import VARIANTS
from glassgpt.model.cache import PastKeyValues
from glassgpt.model.tap import Tap

if TYPE_CHECKING:
    from glassgpt.model.gpt2 import Attention

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of the Triton kernels, which sum in float32


class AttentionInputs(NamedTuple):
    """What `Attention.attend` gets in addition to queries, keys and values."""

    mask: Tensor | None = None  # (B, 1, T, L): which keys a query may look at; None means causal
    positions: Tensor | None = None  # (B, T), as in `GPT2.hidden`; see `mask.token_positions`
    past: PastKeyValues | None = None  # of this layer; the keys and values are in k and v already
    tap: Tap | None = None


# Name -> the module that registers it.
BUILT_IN = {kind.name: f"glassgpt.model.variants.{kind.name}" for kind in VARIANTS}

_CLASSES: dict[str, type[Attention]] = {}
Class = TypeVar("Class", bound="type[Attention]")


def register_attention(name: str) -> Callable[[Class], Class]:
    """Let `Config(attention=name)` build its blocks with the decorated class."""

    def register(cls: Class) -> Class:
        if name in _CLASSES or BUILT_IN.get(name, cls.__module__) != cls.__module__:
            raise ValueError(
                f"attention {name!r} is registered already, as {attention_class(name).__name__}."
            )
        _CLASSES[name] = cls
        ATTENTIONS.setdefault(name, AttentionKind())
        return cls

    return register


def attention_class(name: str) -> type[Attention]:
    if name not in _CLASSES:
        import_module(BUILT_IN[name])
    return _CLASSES[name]
