"""GPT-2 once more, in plain numpy and float64, straight from the articles: what traces are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glassgpt.config import Config


def forward(weights: Mapping[str, np.ndarray], config: Config, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """Every step by name, for one text."""
    w = {name: np.asarray(values, np.float64) for name, values in weights.items()}
    T, H, D = len(ids), config.n_head, config.d_head
    seen: dict[str, np.ndarray] = {}
    seen["wte"] = w["wte.weight"][list(ids)]
    seen["wpe"] = w["wpe.weight"][:T]
    x = seen["embedding"] = seen["wte"] + seen["wpe"]
    for i in range(config.n_layer):
        h = f"h.{i}."
        a = seen[h + "ln_1"] = norm(x, w, h + "ln_1")
        qkv = a @ w[h + "attn.c_attn.weight"] + w[h + "attn.c_attn.bias"]  # (T, 3 C)
        q, k, v = (part.reshape(T, H, D).swapaxes(0, 1) for part in np.split(qkv, 3, axis=1))  # (H, T, D)
        seen[h + "attn.q"], seen[h + "attn.k"], seen[h + "attn.v"] = q, k, v
        scores = seen[h + "attn.scores"] = np.einsum("htd,hsd->hts", q, k)
        scaled = seen[h + "attn.scaled"] = scores / np.sqrt(D)
        masked = seen[h + "attn.masked"] = np.where(np.tri(T, dtype=bool), scaled, -np.inf)
        weights_ = np.exp(masked - masked.max(-1, keepdims=True))
        weights_ = seen[h + "attn.weights"] = weights_ / weights_.sum(-1, keepdims=True)
        z = seen[h + "attn.z"] = np.einsum("hts,hsd->htd", weights_, v)
        merged = seen[h + "attn.merged"] = z.swapaxes(0, 1).reshape(T, H * D)
        seen[h + "attn.proj"] = merged @ w[h + "attn.c_proj.weight"] + w[h + "attn.c_proj.bias"]
        x = seen[h + "resid_mid"] = x + seen[h + "attn.proj"]
        b = seen[h + "ln_2"] = norm(x, w, h + "ln_2")
        u = seen[h + "mlp.fc"] = b @ w[h + "mlp.c_fc.weight"] + w[h + "mlp.c_fc.bias"]
        g = seen[h + "mlp.gelu"] = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
        seen[h + "mlp.proj"] = g @ w[h + "mlp.c_proj.weight"] + w[h + "mlp.c_proj.bias"]
        x = seen[h + "resid_post"] = x + seen[h + "mlp.proj"]
    seen["ln_f"] = norm(x, w, "ln_f")
    seen["logits"] = seen["ln_f"] @ w["lm_head.weight" if "lm_head.weight" in w else "wte.weight"].T
    return seen


def norm(x: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x * w[name + ".weight"] + w[name + ".bias"]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
