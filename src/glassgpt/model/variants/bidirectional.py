"""Attention without a mask: every token sees the whole text (BERT, Devlin et al., 2018).

Such a model cannot continue a text, because it never learned without what follows; it fills blanks. It is
trained on that: `train.objective.MaskedLanguageModeling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from glassgpt.config import cannot_continue
from glassgpt.model.attention import register_attention
from glassgpt.model.cache import LayerCache
from glassgpt.model.gpt2 import Attention, Tap
from glassgpt.model.mask import token_positions

if TYPE_CHECKING:
    from glassgpt.model.variants.memory import LayerMemory


@register_attention("bidirectional")
class BidirectionalAttention(Attention):
    """Each token sees all tokens of its text, and no padding."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
        past: LayerCache | LayerMemory | None,
        tap: Tap | None,
    ) -> Tensor:
        if past is not None:
            raise cannot_continue("bidirectional")
        dropout = self.attn_pdrop if self.training else 0.0
        if tap is None and positions is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=self.scale)
        _, theirs = token_positions(q, k, positions, past)  # (B or 1, T)
        everywhere = (theirs >= 0)[:, None, None, :].expand(-1, 1, q.shape[2], -1)  # (B or 1, 1, T, T)
        return super().attend(q, k, v, everywhere, positions, past, tap)
