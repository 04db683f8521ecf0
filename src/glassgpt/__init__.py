"""GPT-2 made of glass: run it, see inside it, train and tune one, serve it, check it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.inspect.tally import tally

__version__ = "0.1.0"

# What `import glassgpt` offers, and where it lives. Each is imported when first used: the package stays
# fast to import and needs no torch.
_LAZY = {"tally": "glassgpt.inspect.tally"}

__all__ = ["__version__", "tally"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'glassgpt' has no attribute {name!r}")
