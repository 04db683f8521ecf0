"""Checkpoints in all formats of GPT-2 models, the hub, and the shipped models.

Read in this order: checkpoint.py (what every format is loaded into), safetensors_file.py and pickled.py (the
containers), then one file per format; registry.py detects the format; hub.py and download.py fetch models.
"""

from glassgpt.weights.checkpoint import Checkpoint, LazyTensor, LazyTensors, check_tensors
from glassgpt.weights.convert import Report, TensorReport, convert
from glassgpt.weights.registry import (
    FORMATS,
    load_checkpoint,
    load_config,
    load_tokenizer,
    save_checkpoint,
    shipped_names,
)

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
