"""Checkpoints in all formats of GPT-2 models, the hub, and the shipped models.

Read in this order: checkpoint.py (what every format is loaded into), safetensors_file.py and pickled.py (the
containers), then one file per format; registry.py detects the format; hub.py and download.py fetch models.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.weights.checkpoint import Checkpoint, LazyTensor, LazyTensors, check_tensors
    from glassgpt.weights.conversion import Report, TensorReport, convert
    from glassgpt.weights.registry import (
        FORMATS,
        load_checkpoint,
        load_config,
        load_tokenizer,
        save_checkpoint,
        shipped_names,
    )

_MODULE_OF = {
    "FORMATS": "registry",
    "Checkpoint": "checkpoint",
    "LazyTensor": "checkpoint",
    "LazyTensors": "checkpoint",
    "Report": "conversion",
    "TensorReport": "conversion",
    "check_tensors": "checkpoint",
    "convert": "conversion",
    "load_checkpoint": "registry",
    "load_config": "registry",
    "load_tokenizer": "registry",
    "save_checkpoint": "registry",
    "shipped_names": "registry",
}
__all__ = [
    "FORMATS",
    "Checkpoint",
    "LazyTensor",
    "LazyTensors",
    "Report",
    "TensorReport",
    "check_tensors",
    "convert",
    "load_checkpoint",
    "load_config",
    "load_tokenizer",
    "save_checkpoint",
    "shipped_names",
]


def __getattr__(name: str) -> Any:
    # Lazy: a prompt should not wait for the code that converts files.
    if name in _MODULE_OF:
        from importlib import import_module

        return getattr(import_module(f"glassgpt.weights.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'glassgpt.weights' has no attribute {name!r}")
