"""Wrong and right solutions of lesson 2."""

import math

import numpy as np


def hot(ids, n, rows=None, value=1.0, shift=0):
    made = [[0.0] * n for _ in ids]
    for t, i in enumerate(ids):
        made[t][i + shift] = value
    return np.array(made)


def hot_counts(ids, n):
    row = np.zeros(n)
    for i in ids:
        row[i] += 1
    return row


def hot_diagonal(ids, n):
    made = np.zeros((len(ids), n))
    for t in range(len(ids)):
        made[t, t] = 1
    return made


def hot_value(ids, n):
    made = np.zeros((len(ids), n))
    for t, i in enumerate(ids):
        made[t, i] = i
    return made


def embedded(combine):
    def embed(ids, wte, wpe, start=0):
        return np.array([combine(i, t, start, wte, wpe) for t, i in enumerate(ids)])

    return embed


def length(a):
    return math.sqrt(sum(float(x) ** 2 for x in a))


def dot(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b))


def ranked(vectors, row, k, like, own=False, reverse=True):
    scores = [(like(vector, vectors[row]), i) for i, vector in enumerate(vectors) if own or i != row]
    return [i for _, i in sorted(scores, reverse=reverse)][:k]


def cos(a, b):
    return dot(a, b) / length(a) / length(b)


MUTANTS = {
    "one_hot": [(lambda ids, n: hot(ids, n).transpose(), "exchanged"), (hot_counts, "one row"), (hot_diagonal, "diagonal"), (hot_value, "has to be 1"), (lambda ids, n: hot(ids, n, shift=-1), "too far left"), (lambda ids, n: np.array(hot(ids, n), dtype=bool), "True and False")],
    "embed": [
        (embedded(lambda i, t, s, e, p: e[i]), "positions are missing"),
        (embedded(lambda i, t, s, e, p: p[s + t]), "tokens are missing"),
        (embedded(lambda i, t, s, e, p: e[i] + p[t]), "`start` is ignored"),
        (embedded(lambda i, t, s, e, p: e[i] + p[i]), "chosen by the token"),
        (embedded(lambda i, t, s, e, p: e[i] + p[s]), "same position"),
        (embedded(lambda i, t, s, e, p: e[i] * p[s + t]), "multiplied"),
        (embedded(lambda i, t, s, e, p: np.array([*e[i], *p[s + t]])), "side by side"),
    ],
    "cosine": [
        (dot, "dot product, which grows"),
        (lambda a, b: dot(a, b) / length(a) ** 2 / length(b) ** 2, "squared"),
        (lambda a, b: dot(a, b) / length(a), "length of a only"),
        (lambda a, b: dot(a, b) / (length(a) + length(b)), "sum of the lengths"),
        (lambda a, b: length(a - b), "distance between"),
        (lambda a, b: 1.0 - cos(a, b), "cosine distance"),
        (lambda a, b: math.acos(max(-1.0, min(1.0, cos(a, b)))), "angle"),
    ],
    "nearest": [
        (lambda v, r, k: ranked(v, r, k, cos, own=True), "row itself is among"),
        (lambda v, r, k: ranked(v, r, k, cos, reverse=False), "least similar"),
        (lambda v, r, k: ranked(v, r, k, dot), "dot product, where long"),
        (lambda v, r, k: ranked(v, r, k, lambda a, b: -length(a - b)), "distance"),
        (lambda v, r, k: list(reversed(ranked(v, r, k, cos))), "turned around"),
        (lambda v, r, k: ranked(v, r, k - 1, cos), "k - 1"),
    ],
    "dot_table": [
        (lambda x: np.dot(x.T, x), "compares columns"),
        (lambda x: np.array([dot(a, a) for a in x]), "with itself"),
        (lambda x: np.einsum("ic,jc->ij", x, x) / math.sqrt(x.shape[1]), "root of the width"),
        (lambda x: np.array([[cos(a, b) for b in x] for a in x]), "cosines"),
        (lambda x: np.array([[length(a - b) ** 2 for b in x] for a in x]), "squared distances"),
        (lambda x: np.square(x), "each number with itself"),
    ],
}
OTHER_STYLE = {
    "one_hot": lambda ids, n: np.eye(n)[list(ids)],
    "embed": embedded(lambda i, t, s, e, p: e[i] + p[s + t]),
    "cosine": cos,
    "nearest": lambda v, r, k: ranked(v, r, k, cos),
    "dot_table": lambda x: np.array([[dot(a, b) for b in x] for a in x]),
}
