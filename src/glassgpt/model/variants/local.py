"""Local attention (Liu et al., 2018, "Generating Wikipedia by summarizing long sequences").

The text is divided into blocks of `Config.local_block` tokens, and a token sees those of its block up to
itself. T tokens cost T * local_block / 2 scores instead of T * T / 2.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.model.attention import AttentionInputs, register_attention
from glassgpt.model.gpt2 import Attention
from glassgpt.model.mask import token_positions


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, block: int, dropout: float, scale: float) -> Tensor:
    """Causal attention (B, H, T, D) within each block of the text."""
    B, H, T, D = q.shape
    block = min(block, T)
    padding = -T % block  # at the end, where nobody before it looks
    q, k, v = (F.pad(x, (0, 0, 0, padding)).reshape(B, -1, block, D) for x in (q, k, v))
    z = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scale)
    return z.reshape(B, H, -1, D)[:, :, :T]


@register_attention("local")
class LocalAttention(Attention):
    """Each token sees the tokens of its own block up to itself. Nothing passes from block to block."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer)
        self.block = config.local_block

    def attend(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        mask = inputs.mask
        if inputs.tap is None and mask is None:
            dropout = self.attn_pdrop if self.training else 0.0
            return attend_in_blocks(q, k, v, self.block, dropout, self.scale)
        own, theirs = (x.clamp(min=0) for x in token_positions(q, k, inputs))
        blocks = own // self.block, theirs // self.block
        same = blocks[0][:, None, :, None] == blocks[1][:, None, None, :]  # (B or 1, 1, T, L)
        if mask is None:
            mask = own[:, None, :, None] >= theirs[:, None, None, :]
        # Padding may look at the first position, so that its (meaningless) values stay finite.
        mask = mask & (same | (own == 0)[:, None, :, None])
        return super().attend(q, k, v, inputs._replace(mask=mask))
