"""Files to models and back: every format in which GPT-2s are kept, the hub, and the shipped model.

Read in this order: checkpoint.py (what all formats become), safe.py (opening and writing without accidents),
filebytes.py, tensorfile.py and pickled.py (the containers), then one file per format; registry.py finds the
right one.
"""

from glassgpt.weights.checkpoint import Checkpoint, LazyTensor, LazyTensors, checked
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
    "checked",
    "convert",
    "load_checkpoint",
    "load_config",
    "load_tokenizer",
    "save_checkpoint",
    "shipped_names",
]
