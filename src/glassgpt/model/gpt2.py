"""GPT-2, whole. Read it from top to bottom: in the order a token passes through it.

Letters in the shape comments: B sequences, T tokens in each, C = n_embd numbers per token, H heads of
D = C / H numbers, L keys to look back at, M = 4 C inside the MLP, V tokens in the vocabulary.

The parameter names are OpenAI's, and matrices are stored (in, out) as OpenAI stored them, so a published
checkpoint is this module's state, name by name and number by number.

Every step has a name (`h.3.attn.scores`). A `tap` is a function `tap(name, tensor) -> tensor` that is shown
each of them and may return a changed one (tap.py); without a tap nothing is computed that the logits do not
need.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.model.activations import ACTIVATIONS
from glassgpt.model.attention import AttentionInputs, attention_class, register_attention
from glassgpt.model.cache import Past, PastKeyValues
from glassgpt.model.head import vocabulary_logits
from glassgpt.model.mask import visible
from glassgpt.model.tap import Tap, show, within


class GPT2(nn.Module):
    """Token ids in, logits out: embeddings, a stack of blocks, a last norm, and the vocabulary again."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)  # one row for each token
        self.wpe = None  # only a model with relative positions can do without
        if config.has_wpe:
            self.wpe = nn.Embedding(config.n_positions, config.n_embd)  # one row for each position
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        # The head of the published models is wte itself: a token's score is how well the final vector
        # matches that token's embedding. Only a model with an untied head has a second matrix.
        self.lm_head = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.initialize()

    def forward(
        self, ids: Tensor, positions: Tensor | None = None, cache: Past | None = None, tap: Tap | None = None
    ) -> Tensor:
        """The logits (B, T, V) for the token that follows each of `ids` (B, T)."""
        return self.head(self.hidden(ids, positions, cache, tap), tap)

    def hidden(
        self, ids: Tensor, positions: Tensor | None = None, cache: Past | None = None, tap: Tap | None = None
    ) -> Tensor:
        """Everything up to the head: the final vector of each token, (B, T, C).

        `positions` (B, T) is the position of each token in its own sequence; -1 marks padding, which no token
        attends to. By default, every sequence starts at position 0. With a `cache`, keys and values are
        stored there under their position, and tokens attend to what the cache holds.
        """
        mask = None  # plain causal: each token sees itself and all before it in the sequence
        if positions is not None:
            mask = visible(positions, None if cache is None else cache.span)  # (B, 1, T, L)
        x = self.embed(ids, positions, tap)  # (B, T, C)
        for i, block in enumerate(self.h):
            past = None if cache is None else cache.layer(i)
            x = block(x, mask, positions, past, within(tap, f"h.{i}"))  # (B, T, C)
        final: Tensor = self.ln_f(x)
        return show(tap, "ln_f", final)

    def embed(self, ids: Tensor, positions: Tensor | None = None, tap: Tap | None = None) -> Tensor:
        """What each token means plus where it is: (B, T) -> (B, T, C)."""
        where = torch.arange(ids.shape[1], device=ids.device)[None] if positions is None else positions
        tokens = show(tap, "wte", self.wte(ids))  # (B, T, C)
        positional = torch.zeros_like(tokens) if self.wpe is None else self.wpe(where.clamp(min=0))
        x = tokens + show(tap, "wpe", positional)  # (B or 1, T, C) each
        x = F.dropout(x, self.config.embd_pdrop, self.training)
        return show(tap, "embedding", x)

    def head(self, x: Tensor, tap: Tap | None = None) -> Tensor:
        """Score every token of the vocabulary against the final vectors: (B, T, C) -> (B, T, V)."""
        weight = self.wte.weight if self.lm_head is None else self.lm_head.weight  # (V, C)
        return show(tap, "logits", vocabulary_logits(x, weight))

    @torch.no_grad()
    def initialize(self) -> None:
        """GPT-2's start: N(0, 0.02), and 0.02 / sqrt(2 n_layer) where a block adds to the residual stream.

        Each block adds twice (attention and MLP), so the stream's variance after n_layer blocks is that of
        one addition: without this, deeper models would start louder.
        """
        std = self.config.initializer_range
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=std / math.sqrt(2 * self.config.n_layer))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("weight"):
                nn.init.ones_(parameter)
            else:
                nn.init.zeros_(parameter)


class Block(nn.Module):
    """One storey: gather from other tokens (attention), then think (MLP); both add to the stream."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = attention_class(config.attention)(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
        past: PastKeyValues | None,
        tap: Tap | None,
    ) -> Tensor:
        normed = show(tap, "ln_1", self.ln_1(x))
        x = x + self.attn(normed, AttentionInputs(mask, positions, past, within(tap, "attn")))
        x = show(tap, "resid_mid", x)
        normed = show(tap, "ln_2", self.ln_2(x))
        x = x + self.mlp(normed, within(tap, "mlp"))
        return show(tap, "resid_post", x)


@register_attention("causal")
class Attention(nn.Module):
    """Masked self-attention: each token asks (q), offers (k) and passes on (v), in H heads at once."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.attn_pdrop, self.resid_pdrop = config.attn_pdrop, config.resid_pdrop
        self.scale = 1 / math.sqrt(config.d_head) if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        self.c_attn = Projection(config.n_embd, 3 * config.n_embd)
        self.c_proj = Projection(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        tap, past = inputs.tap, inputs.past
        q, k, v = self.c_attn(x).chunk(3, dim=2)  # (B, T, C) each
        q = show(tap, "q", self.split_heads(q))  # (B, H, T, D)
        k = show(tap, "k", self.split_heads(k))  # (B, H, T, D)
        v = show(tap, "v", self.split_heads(v))  # (B, H, T, D)
        if past is not None:
            k, v = past.update(k, v, inputs.positions)  # (B, H, L, D)
        return self.merge(self.attend(q, k, v, inputs), tap)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """Mix the values (B, H, L, D) for each query, (B, H, T, D).

        This is what a variant overrides (attention.py).
        """
        mask, tap = inputs.mask, inputs.tap
        dropout = self.attn_pdrop if self.training else 0.0
        if tap is None:
            causal = mask is None and q.shape[2] > 1
            return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal, scale=self.scale)
        return self.step_by_step(q, k, v, mask, dropout, tap)

    def merge(self, z: Tensor, tap: Tap | None) -> Tensor:
        """Set the heads' results side by side, (B, H, T, D) -> (B, T, C), and project them."""
        merged = show(tap, "merged", z.transpose(1, 2).flatten(2))  # (B, T, C)
        out = F.dropout(self.c_proj(merged), self.resid_pdrop, self.training)  # (B, T, C)
        return show(tap, "proj", out)

    def split_heads(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        return x.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, H, T, D)

    def step_by_step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        dropout: float,
        tap: Tap,
        relative: Tensor | float = 0.0,
    ) -> Tensor:
        """What the fused kernel does, one named step at a time.

        Scores are kept in float32, as the fused kernels keep them (and as `reorder_and_upcast_attn` asks).
        `relative` (B, H, T, L) is what a variant adds to them.
        """
        scores = q.float() @ k.float().transpose(2, 3) + relative  # (B, H, T, L)
        scores = tap("scores", scores)
        scaled = tap("scaled", scores * self.scale)
        if mask is None:
            T, L = scores.shape[2:]
            mask = torch.ones(T, L, dtype=torch.bool, device=scores.device).tril()  # no looking ahead
        masked = tap("masked", scaled.masked_fill(~mask, -math.inf))
        weights = tap("weights", masked.softmax(dim=-1))  # each row sums to one
        weights = F.dropout(weights, dropout, training=dropout > 0).to(v.dtype)
        return tap("z", weights @ v)  # (B, H, T, D)


class MLP(nn.Module):
    """Each token by itself: expand 4x, apply GELU, project back."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.resid_pdrop = config.resid_pdrop
        self.activation = ACTIVATIONS[config.activation_function]
        self.c_fc = Projection(config.n_embd, config.d_mlp)
        self.c_proj = Projection(config.d_mlp, config.n_embd)

    def forward(self, x: Tensor, tap: Tap | None) -> Tensor:
        x = show(tap, "fc", self.c_fc(x))  # (B, T, M)
        x = show(tap, "gelu", self.activation(x))  # (B, T, M)
        x = F.dropout(self.c_proj(x), self.resid_pdrop, self.training)  # (B, T, C)
        return show(tap, "proj", x)


class Projection(nn.Module):
    """x @ weight + bias with the weight stored (in, out), as in OpenAI's checkpoint (there: `conv1d`)."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_out))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])  # (B * T, in)
        return torch.addmm(self.bias, flat, self.weight).view(*x.shape[:-1], -1)  # (B, T, out)
