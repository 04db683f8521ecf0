"""Attention without a mask: every token sees the whole text (BERT, Devlin et al., 2018).

Such a model cannot continue a text, because in training it always saw the text that follows; it fills
blanks. It is trained on that: `train.objective.MaskedLanguageModeling`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from glassgpt.config import cannot_continue
from glassgpt.model.attention import AttentionInputs, register_attention
from glassgpt.model.gpt2 import Attention
from glassgpt.model.mask import token_positions


@register_attention("bidirectional")
class BidirectionalAttention(Attention):
    """Each token sees all tokens of its text, and no padding."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        if inputs.past is not None:
            raise cannot_continue("bidirectional")
        dropout = self.attn_pdrop if self.training else 0.0
        if inputs.tap is None and inputs.positions is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=self.scale)
        _, theirs = token_positions(q, k, inputs)  # (B or 1, T)
        everywhere = (theirs >= 0)[:, None, None, :].expand(-1, 1, q.shape[2], -1)  # (B or 1, 1, T, T)
        return super().attend(q, k, v, inputs._replace(mask=everywhere))
