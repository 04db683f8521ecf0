"""Attention without a mask (BERT): model/variants/bidirectional.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassgpt.config.checks import check_token_id
from glassgpt.config.variants.kind import AttentionKind
from glassgpt.errors import ConfigError

if TYPE_CHECKING:
    from glassgpt.config.config import Config


@dataclass(frozen=True, kw_only=True)
class BidirectionalSettings:
    mask_token_id: int | None = None  # stands for a blank; not one of the tokenizer's tokens


class BidirectionalKind(AttentionKind):
    name = "bidirectional"
    settings = BidirectionalSettings
    is_causal = False

    def check(self, config: Config) -> None:
        check_token_id("mask_token_id", config.mask_token_id)
        if config.mask_token_id >= config.vocab_size:  # type: ignore[operator]
            raise ConfigError(
                f"mask_token_id {config.mask_token_id} is not below vocab_size {config.vocab_size}. "
                "Use the id of a token that stands for a blank."
            )

    def defaults_for(self, context: int, vocab_size: int) -> dict[str, Any]:
        return {"mask_token_id": vocab_size, "vocab_size": vocab_size + 1}  # one more token: the blank
