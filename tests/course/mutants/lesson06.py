"""Wrong and right solutions of lesson 6."""

import math

import numpy as np

from tests.course.mutants.lesson05 import row_norm, steps


def last(x, weights, norm="ln_f", w=True, b=True):
    if norm is not None:
        weight, bias = weights[f"{norm}.weight"], weights[f"{norm}.bias"]
        x = row_norm(x, weight if w else np.ones_like(weight), bias if b else np.zeros_like(bias))
    return np.einsum("tc,vc->tv", x, weights["wte.weight"])


def model(ids, weights, n_layer, n_head, cache=None, order=None, place=None, end=last, give=True, positions=True):
    held = 0
    if cache:
        held = next(iter(cache.values()))[0].shape[1]
    first = held if place is None else place
    x = np.stack([weights["wte.weight"][i] + positions * weights["wpe.weight"][first + t] for t, i in enumerate(ids)])
    for layer in range(n_layer) if order is None else order(n_layer):
        x = steps(x, weights, layer, n_head, cache if give else None)
    return end(x, weights)


def soft(x):
    powers = [math.exp(v - max(x)) for v in x]
    return [p / sum(powers) for p in powers]


def bits(x, token, base=2.0):
    top = max(float(v) for v in x)
    return (math.log(sum(math.exp(float(v) - top) for v in x)) + top - float(x[token])) / math.log(base)


def ranked(x, k, key):
    return sorted(range(len(x)), key=key)[:k]


MUTANTS = {
    "unembed": [
        (lambda x, w: last(x, w, norm=None), "ln_f, is missing"),
        (lambda x, w: last(x, w, norm="h.0.ln_1"), "norm of block 0"),
        (lambda x, w: last(x, w, b=False), "bias of ln_f"),
        (lambda x, w: last(x, w)[len(x) - 1], "last token"),
        (lambda x, w: row_norm(x, w["ln_f.weight"], w["ln_f.bias"]), "normed stream"),
    ],
    "gpt2": [
        (lambda *a: model(*a, end=lambda x, w: last(x, w, norm=None)), "ln_f, is missing"),
        (lambda *a: model(*a, positions=False), "positions are missing"),
        (lambda *a: model(*a, order=lambda n: range(n - 1)), "last block is missing"),
        (lambda *a: model(*a, order=lambda n: range(n - 1, -1, -1)), "from last to first"),
        (lambda *a: model(*a, give=False), "not handed on"),
        (lambda *a: model(*a, place=0), "begin at 0 again"),
        (lambda *a: model(*a, end=lambda x, w: last(x, w)[-1]), "last token"),
    ],
    "top_tokens": [
        (lambda x, k: ranked(x, k, lambda i: x[i]), "lowest scores"),
        (lambda x, k: ranked(x, k, lambda i: -x[i])[::-1], "wrong order"),
        (lambda x, k: [float(x[i]) for i in ranked(x, k, lambda i: -x[i])], "These are the scores"),
        (lambda x, k: sorted(ranked(x, k, lambda i: -x[i])), "sorted by id"),
        (lambda x, k: ranked(x, k + 1, lambda i: -x[i])[1:], "best one is missing"),
    ],
    "surprise": [
        (lambda x, t: bits(x, t, math.e), "nats"),
        (lambda x, t: -bits(x, t), "sign is missing"),
        (lambda x, t: 2.0 ** -bits(x, t), "This is the probability"),
        (lambda x, t: -float(x[t]), "minus the score"),
        (lambda x, t: bits(x, t, 10.0), "base 10"),
    ],
}
OTHER_STYLE = {
    "unembed": last,
    "gpt2": model,
    "top_tokens": lambda x, k: ranked(x, k, lambda i: -x[i]),
    "surprise": bits,
}
