"""ids -> logits: the model. Start with gpt2.py, then cache.py and attention.py.

torch_backend.py implements the protocol of `glassgpt.backend`; decode.py, cuda_graphs.py, triton_kernels.py
and scoring.py make it fast, where fast_path.py says they may.
"""

from glassgpt.model.cache import Cache
from glassgpt.model.gpt2 import GPT2, Tap
from glassgpt.model.torch_backend import TorchBackend, load_model

__all__ = ["GPT2", "Cache", "Tap", "TorchBackend", "load_model"]
