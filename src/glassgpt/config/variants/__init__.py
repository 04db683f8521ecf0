"""The attentions of this package: their settings, tensors, steps and training options, without torch.

A variant's two files are the one here and the one of the same name in `model/variants/`, which computes it.
To delete a variant, delete both and its line in each list below.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.config.variants.bidirectional import BidirectionalKind, BidirectionalSettings
from glassgpt.config.variants.compressed import CompressedKind
from glassgpt.config.variants.kind import AttentionKind
from glassgpt.config.variants.local import LocalKind, LocalOptions, LocalSettings
from glassgpt.config.variants.memory import MemoryKind, MemoryOptions, MemorySettings
from glassgpt.config.variants.relative import RelativeKind, RelativeOptions, RelativeSettings

VARIANTS: tuple[AttentionKind, ...] = (
    RelativeKind(),
    MemoryKind(),
    BidirectionalKind(),
    LocalKind(),
    CompressedKind(),
)
# By name. "causal" is the published one. `model.attention.register_attention` adds others.
ATTENTIONS = {kind.name: kind for kind in (AttentionKind(), *VARIANTS)}


@dataclass(frozen=True, kw_only=True)
class VariantSettings(RelativeSettings, MemorySettings, BidirectionalSettings, LocalSettings):
    """The settings that only some attentions read, as fields of `Config`; in config.json only with them."""


@dataclass(frozen=True, kw_only=True)
class VariantOptions(LocalOptions, MemoryOptions, RelativeOptions):
    """Options of training that only some attentions read."""
