"""ids -> logits: GPT-2, and nothing else.

numpy_gpt2.py is the whole model on one screen. gpt2.py is the one that trains and runs on any device;
attention.py, cache.py, mask.py, activations.py, head.py and tap.py hold its parts; variants/ has other
attentions.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.model.cache import Cache
    from glassgpt.model.gpt2 import GPT2
    from glassgpt.model.numpy_gpt2 import NumpyGPT2
    from glassgpt.model.tap import Tap

_MODULE_OF = {"Cache": "cache", "GPT2": "gpt2", "NumpyGPT2": "numpy_gpt2", "Tap": "tap"}
__all__ = ["GPT2", "Cache", "NumpyGPT2", "Tap"]


def __getattr__(name: str) -> Any:
    # Lazy: the numpy model runs where torch is not installed.
    if name in _MODULE_OF:
        from importlib import import_module

        return getattr(import_module(f"glassgpt.model.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'glassgpt.model' has no attribute {name!r}")
