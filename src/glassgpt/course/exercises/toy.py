"""A GPT-2 of random numbers, small enough that every mistake is tried in a moment."""

import numpy as np

N_LAYER, N_HEAD, C, V, CONTEXT = 2, 2, 8, 11, 12


def toy_weights(rng):
    """Every vector and matrix is random, also those that start as ones or zeros in training: a forgotten bias
    shows."""
    made = {
        "wte.weight": rng.normal(size=(V, C)),
        "wpe.weight": rng.normal(size=(CONTEXT, C)),
        **normalization(rng, "ln_f"),
    }
    for layer in range(N_LAYER):
        made |= normalization(rng, f"h.{layer}.ln_1") | normalization(rng, f"h.{layer}.ln_2")
        for name, n_in, n_out in (
            ("attn.c_attn", C, 3 * C),
            ("attn.c_proj", C, C),
            ("mlp.c_fc", C, 4 * C),
            ("mlp.c_proj", 4 * C, C),
        ):
            made[f"h.{layer}.{name}.weight"] = rng.normal(size=(n_in, n_out)) / np.sqrt(n_in)
            made[f"h.{layer}.{name}.bias"] = rng.normal(size=n_out)
    return made


def normalization(rng, name):
    return {f"{name}.weight": 1 + 0.3 * rng.normal(size=C), f"{name}.bias": rng.normal(size=C)}


def toy_cache(rng, n_tokens):
    """Keys and values of tokens before, for every block."""
    size = (2, N_HEAD, n_tokens, C // N_HEAD)
    return {layer: tuple(rng.normal(size=size)) for layer in range(N_LAYER)}
