"""Wrong and right solutions of lesson 3."""

import math

import numpy as np


def loop_scores(query, keys, divide):
    return np.array([sum(float(a) * float(b) for a, b in zip(query, key)) / divide(query, keys) for key in keys])


def along(x, axis):
    return np.apply_along_axis(lambda row: np.exp(row - row.max()) / np.exp(row - row.max()).sum(), axis, x)


def by_parts(x, part):
    return np.apply_along_axis(part, -1, x)


def mixed(shares, values):
    total = np.zeros(values.shape[1])
    for share, value in zip(shares, values):
        total = total + share * value
    return total


def reading(query, keys, values, scale=True, soft=True, scored=None, blended=None):
    scored = keys if scored is None else scored
    blended = values if blended is None else blended
    scores = np.array([np.dot(query, key) for key in scored])
    if scale:
        scores = scores / query.size**0.5
    shares = along(scores, 0) if soft else scores
    return mixed(shares, blended)


def hardest(q, k, v):
    best = max(range(len(k)), key=lambda i: float(np.dot(q, k[i])))
    return v[best]


MUTANTS = {
    "scaled_scores": [
        (lambda q, k: loop_scores(q, k, lambda a, b: 1), "scale is missing"),
        (lambda q, k: loop_scores(q, k, lambda a, b: len(a)), "divided by the width"),
        (lambda q, k: loop_scores(q, k, lambda a, b: len(a) ** -0.5), "multiplied by the root"),
        (lambda q, k: loop_scores(q, k, lambda a, b: len(b) ** 0.5), "number of keys"),
        (lambda q, k: along(loop_scores(q, k, lambda a, b: len(a) ** 0.5), 0), "shares already"),
        (lambda q, k: np.array([q * key for key in k]) / len(q) ** 0.5, "not added up"),
    ],
    "softmax": [
        (lambda x: along(x, 0), "first axis"),
        (lambda x: np.exp(x - np.amax(x)) / np.sum(np.exp(x - np.amax(x))), "together sum to 1"),
        (lambda x: by_parts(x, lambda row: np.exp(row) / sum(np.exp(row))), "Right for small scores"),
        (lambda x: by_parts(x, lambda row: np.exp(row - max(row))), "not divided by their sum"),
        (lambda x: by_parts(x, lambda row: row / sum(row)), "exponential is missing"),
        (lambda x: by_parts(x, lambda row: 2 ** (row - max(row)) / sum(2 ** (row - max(row)))), "powers of 2"),
        (lambda x: np.log(along(x, -1)), "logarithm"),
    ],
    "blend": [
        (lambda s, v: np.array([a * b for a, b in zip(s, v)]), "not added up"),
        (lambda s, v: np.average(v, axis=0), "plain mean"),
        (lambda s, v: np.add.reduce(v), "plain sum"),
        (lambda s, v: v[list(s).index(max(s))], "largest share"),
        (lambda s, v: mixed(s, v) / len(v), "number"),
        (lambda s, v: sum(mixed(s, v)), "one number"),
    ],
    "attend": [
        (lambda q, k, v: reading(q, k, v, scale=False), "scale is missing"),
        (lambda q, k, v: reading(q, k, v, scored=v), "compared with the values"),
        (lambda q, k, v: reading(q, k, v, blended=k), "keys are blended"),
        (lambda q, k, v: reading(q, k, v, soft=False), "softmax is missing"),
        (hardest, "best key"),
        (lambda q, k, v: reading(q, k, v) + q, "query is added"),
    ],
}
OTHER_STYLE = {
    "scaled_scores": lambda q, k: loop_scores(q, k, lambda a, b: math.sqrt(len(a))),
    "softmax": lambda x: along(x, -1),
    "blend": mixed,
    "attend": reading,
}
