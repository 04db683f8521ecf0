"""Wrong and right solutions of lesson 9, written apart from the exercises' own."""

import math


def layer(n_in, n_out, bias=True):
    return math.prod((n_in, n_out)) + n_out * bias


def attention(c, bias=True):
    return layer(c, 3 * c, bias) + layer(c, c, bias)


def mlp(c, inside=4):
    return layer(c, inside * c) + layer(inside * c, c)


def block(c, norms=2):
    return attention(c) + mlp(c) + norms * 2 * c


def model(n, c, v, p, final=2, tables=1):
    return tables * v * c + p * c + n * block(c) + final * c


MUTANTS = {
    "embedding_parameters": [
        (lambda v, p, c: c * v, "positions are missing"),
        (lambda v, p, c: c * p, "tokens are missing"),
        (lambda v, p, c: c * v * p, "tables are multiplied"),
        (lambda v, p, c: c * (v + v + p), "counted twice"),
        (lambda v, p, c: layer(v, c) + layer(p, c), "no biases"),
    ],
    "attention_parameters": [
        (lambda c: attention(c, bias=False), "biases are missing"),
        (lambda c: layer(c, 3 * c), "c_proj is missing"),
        (lambda c: layer(c, c) * 2, "goes to 3C"),
        (lambda c: attention(c) - 3 * c, "bias of c_attn is missing"),
        (lambda c: attention(c) - c, "bias of c_proj is missing"),
        (lambda c: attention(c, bias=False) + c + c, "has 3C numbers"),
    ],
    "mlp_parameters": [
        (lambda c: 2 * layer(c, 4 * c, bias=False), "biases are missing"),
        (lambda c: layer(c, 4 * c, bias=False) + c + layer(4 * c, c), "4C biases"),
        (lambda c: layer(c, 4 * c), "c_proj is missing"),
        (lambda c: layer(4 * c, c), "c_fc is missing"),
        (lambda c: mlp(c, inside=1), "four times as wide"),
        (lambda c: 2 * layer(c, 4 * c), "not 4C"),
    ],
    "block_parameters": [
        (lambda c: block(c, norms=0), "two LayerNorms are missing"),
        (lambda c: block(c, norms=1), "One LayerNorm"),
        (lambda c: block(c) - attention(c), "attention is missing"),
        (lambda c: block(c) - mlp(c), "MLP is missing"),
        (lambda c: c * 12 * c, "Only the matrices"),
        (lambda c: block(c, norms=3), "final one is outside"),
    ],
    "model_parameters": [
        (lambda n, c, v, p: model(n, c, v, p, final=0), "final LayerNorm is missing"),
        (lambda n, c, v, p: model(n, c, v, p, tables=2), "table of its own"),
        (lambda n, c, v, p: model(n, c, v, p) - (n - 1) * block(c), "Only one block"),
        (lambda n, c, v, p: model(n, c, v, 0, tables=0), "embeddings are missing"),
        (lambda n, c, v, p: model(n, c, v, 0), "position table"),
        (lambda n, c, v, p: model(n, c, v, p, final=1), "One of them is missing"),
    ],
}

OTHER_STYLE = {
    "embedding_parameters": lambda v, p, c: sum(c for _ in range(v + p)),
    "attention_parameters": attention,
    "mlp_parameters": mlp,
    "block_parameters": lambda c: 12 * c**2 + 13 * c,
    "model_parameters": model,
}
