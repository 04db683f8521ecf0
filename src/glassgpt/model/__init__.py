"""ids -> logits: the model. Start with gpt2.py, then cache.py; backend.py and graph.py only make it quick."""

from glassgpt.model.cache import Cache
from glassgpt.model.gpt2 import GPT2, Tap
from glassgpt.model.torch_backend import TorchBackend, load_model

__all__ = ["GPT2", "Cache", "Tap", "TorchBackend", "load_model"]
