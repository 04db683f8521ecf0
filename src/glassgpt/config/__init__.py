"""The shape of a GPT-2: every setting that decides which tensors exist and how they are used.

config.py is read first. foreign_keys.py lists the keys of `config.json` that are not ours; variants/ has the
settings of other attentions.
"""

from glassgpt.config.config import ACTIVATIONS, SIZES, Config, cannot_continue, check_can_continue
from glassgpt.config.variants import ATTENTIONS
from glassgpt.config.variants.kind import AttentionKind

__all__ = [
    "ACTIVATIONS", "ATTENTIONS", "SIZES", "AttentionKind", "Config", "cannot_continue", "check_can_continue",
]  # fmt: skip
