"""Local attention in blocks of the text: model/variants/local.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassgpt.config.checks import check_count
from glassgpt.config.variants.kind import AttentionKind

if TYPE_CHECKING:
    from glassgpt.config.config import Config


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    local_block: int = 256  # tokens in a block


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    local_block: int | None = None  # local attention: tokens in a block (default: 256)


class LocalKind(AttentionKind):
    name = "local"
    settings = LocalSettings

    def check(self, config: Config) -> None:
        check_count("local_block", config.local_block)

    def note(self, config: Config, context: int) -> str | None:
        if context > config.local_block:
            return None
        shorter = max(1, context // 4)
        return (
            f"note: a sequence of {context:,} tokens is in one block of {config.local_block:,}, where local "
            f"attention sees all of it. Choose a longer --context, or --local-block {shorter}."
        )
