"""GPT-2 in numpy: the whole forward pass on one screen, with the taps of gpt2.py and no torch.

It is the same model, written a second time in plain array operations: a good place to start reading, an
independent reference for tests, and the model that traces show where torch is not installed. Parameter names
are OpenAI's, and the letters of the shape comments are those of gpt2.py: B sequences, T tokens, C = n_embd,
H heads of D numbers, L keys, M inside the MLP, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import NEEDS_TORCH, UserError
from glassgpt.model.tap import show, within

Array = np.ndarray
Tap = Callable[[str, Array], Array]

GELU_A, GELU_B = math.sqrt(2 / math.pi), 0.044715  # x (1 + tanh(A (x + B x^3))) / 2


class NumpyGPT2:
    """Token ids in, logits out."""

    kind = Config.attention  # which `Config.attention` this class computes

    def __init__(self, config: Config, weights: Mapping[str, Array]) -> None:
        if config.attention != self.kind:
            raise needs_torch(config)
        self.config = config
        self.weights = weights  # by OpenAI's names, matrices (in, out)

    def __call__(
        self, ids: Array, start: int = 0, cache: Array | None = None, tap: Tap | None = None
    ) -> Array:
        """The logits (B, T, V) for the token that follows each of `ids` (B, T)."""
        return self.head(self.hidden(ids, start, cache, tap), tap)

    def hidden(self, ids: Array, start: int = 0, cache: Array | None = None, tap: Tap | None = None) -> Array:
        """The final vector of each token, (B, T, C). The tokens are at positions start, start + 1, ...

        A cache, (n_layer, 2, B, H, context, D), holds the keys and values of the positions before.
        """
        x = self.embed(ids, start, tap)  # (B, T, C)
        for layer in range(self.config.n_layer):
            past = None if cache is None else cache[layer]
            x = self.block(layer, x, start, past, within(tap, f"h.{layer}"))  # (B, T, C)
        return show(tap, "ln_f", self.layer_norm("ln_f", x))

    def embed(self, ids: Array, start: int = 0, tap: Tap | None = None) -> Array:
        end = start + ids.shape[1]
        tokens = show(tap, "wte", self.weights["wte.weight"][ids])  # (B, T, C)
        rows = self.weights["wpe.weight"][start:end] if self.config.has_wpe else np.zeros_like(tokens[0])
        positions = show(tap, "wpe", rows[None])  # (1, T, C)
        return show(tap, "embedding", tokens + positions)

    def block(
        self, layer: int, x: Array, start: int = 0, past: Array | None = None, tap: Tap | None = None
    ) -> Array:
        """Gather from other tokens (attention), then each token by itself (MLP); both add to the stream."""
        normed = show(tap, "ln_1", self.layer_norm(f"h.{layer}.ln_1", x))
        x = show(tap, "resid_mid", x + self.attention(layer, normed, start, past, within(tap, "attn")))
        normed = show(tap, "ln_2", self.layer_norm(f"h.{layer}.ln_2", x))
        return show(tap, "resid_post", x + self.mlp(layer, normed, within(tap, "mlp")))

    def attention(self, layer: int, x: Array, start: int, past: Array | None, tap: Tap | None) -> Array:
        B, T, C = x.shape
        qkv = self.linear(f"h.{layer}.attn.c_attn", x).reshape(B, T, 3, self.config.n_head, -1)
        heads = qkv.transpose(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        q, k, v = (show(tap, name, part) for name, part in zip("qkv", heads, strict=True))  # (B, H, T, D)
        if past is not None:
            past[:, :, :, start : start + T] = k, v
            k, v = past[:, :, :, : start + T]  # (B, H, L, D)
        scores = show(tap, "scores", self.scores(layer, q, k, tap))  # (B, H, T, L)
        scaled = show(tap, "scaled", scores * attention_scale(self.config, layer))
        visible = np.tri(T, k.shape[2], k.shape[2] - T, dtype=bool)  # no looking ahead
        masked = show(tap, "masked", np.where(visible, scaled, -math.inf).astype(x.dtype, copy=False))
        weights = show(tap, "weights", softmax(masked))  # each row sums to one
        z = show(tap, "z", weights @ v)  # (B, H, T, D)
        merged = show(tap, "merged", z.swapaxes(1, 2).reshape(B, T, C))
        return show(tap, "proj", self.linear(f"h.{layer}.attn.c_proj", merged))

    def scores(self, layer: int, q: Array, k: Array, tap: Tap | None) -> Array:
        """Every query (B, H, T, D) times every key (B, H, L, D)."""
        out: Array = q @ k.swapaxes(2, 3)
        return out

    def mlp(self, layer: int, x: Array, tap: Tap | None) -> Array:
        x = show(tap, "fc", self.linear(f"h.{layer}.mlp.c_fc", x))  # (B, T, M)
        x = show(tap, "gelu", ACTIVATIONS[self.config.activation_function](x))
        return show(tap, "proj", self.linear(f"h.{layer}.mlp.c_proj", x))  # (B, T, C)

    def head(self, x: Array, tap: Tap | None = None) -> Array:
        """Score every token of the vocabulary: (..., C) -> (..., V)."""
        return show(tap, "logits", x @ self.head_weight.T)

    @property
    def head_weight(self) -> Array:
        return self.weights["wte.weight" if self.config.tie_word_embeddings else "lm_head.weight"]  # (V, C)

    def linear(self, name: str, x: Array) -> Array:
        out: Array = x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return out

    def layer_norm(self, name: str, x: Array) -> Array:
        centered = x - x.mean(-1, keepdims=True)
        variance = np.square(centered).mean(-1, keepdims=True)
        normed = centered / np.sqrt(variance + self.config.layer_norm_epsilon)
        scaled: Array = normed * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return scaled


def numpy_class(config: Config) -> type[NumpyGPT2]:
    """The class that computes such a model: this one, or a variant's own. Most variants need torch."""
    if config.attention == Config.attention:
        return NumpyGPT2
    if config.kind.numpy_class is None:
        raise needs_torch(config)
    module, name = config.kind.numpy_class.split(":")
    cls: type[NumpyGPT2] = getattr(import_module(module), name)
    return cls


def needs_torch(config: Config) -> UserError:
    return UserError(f"attention {config.attention!r} {NEEDS_TORCH}")


def attention_scale(config: Config, layer: int) -> float:
    scale = 1 / math.sqrt(config.d_head) if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


def softmax(x: Array) -> Array:
    weights: Array = np.exp(x - x.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


def gelu_tanh(x: Array) -> Array:
    """The published GELU: the tanh form."""
    out: Array = x * (1 + np.tanh(GELU_A * (x + GELU_B * (x * x * x)))) / 2
    return out


def gelu_erf(x: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[x.dtype])  # numpy has no erf
    out: Array = x * (1 + erf(x / math.sqrt(2))) / 2
    return out


def silu(x: Array) -> Array:
    out: Array = x * (1 + np.tanh(x / 2)) / 2  # x times its sigmoid, which cannot overflow in this form
    return out


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu": gelu_erf,
    "relu": lambda x: np.maximum(x, 0),
    "silu": silu,
    "swish": silu,
    "tanh": np.tanh,
}
