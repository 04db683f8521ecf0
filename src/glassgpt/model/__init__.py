"""ids -> logits: the model. numpy_gpt2.py is all of it on one screen; gpt2.py, cache.py and attention.py are
the one that trains, and runs on any device.

torch_backend.py and numpy_backend.py implement the protocol of `glassgpt.backend`; decode.py, cuda_graphs.py,
triton_kernels.py and scoring.py make torch's fast, where fast_path.py says they may.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.model.cache import Cache
    from glassgpt.model.gpt2 import GPT2, Tap
    from glassgpt.model.numpy_gpt2 import NumpyGPT2
    from glassgpt.model.torch_backend import TorchBackend, load_model

_MODULE_OF = {
    "Cache": "cache",
    "GPT2": "gpt2",
    "NumpyGPT2": "numpy_gpt2",
    "Tap": "gpt2",
    "TorchBackend": "torch_backend",
    "load_model": "torch_backend",
}
__all__ = ["GPT2", "Cache", "NumpyGPT2", "Tap", "TorchBackend", "load_model"]


def __getattr__(name: str) -> Any:
    # Lazy: the numpy model runs where torch is not installed.
    if name in _MODULE_OF:
        from importlib import import_module

        return getattr(import_module(f"glassgpt.model.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'glassgpt.model' has no attribute {name!r}")
