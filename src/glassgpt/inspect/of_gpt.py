"""What this room needs of a loaded model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassgpt.errors import UserError
from glassgpt.model import TorchBackend
from glassgpt.model.gpt2 import GPT2

if TYPE_CHECKING:
    from glassgpt.gpt import GPT


def model_of(gpt: GPT) -> GPT2:
    """The torch model, which is the one with named steps."""
    if not isinstance(gpt.backend, TorchBackend):
        raise UserError("only the torch backend shows its steps. Load the model with backend='torch'.")
    return gpt.backend.model
