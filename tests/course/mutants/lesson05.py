"""Wrong and right solutions of lesson 5."""

import math

import numpy as np

from tests.course.mutants.lesson04 import whole


def row_norm(x, weight, bias, eps=1e-5, power=0.5, less=0, mean=True, late=0.0):
    def one(row):
        middle = sum(row) / len(row) if mean else 0.0
        moved = row - middle
        variance = sum(moved**2) / (len(row) - less)
        return moved / ((variance + eps) ** power + late)

    return np.apply_along_axis(one, -1, x) * weight + bias


def whole_norm(x, weight, bias):
    return (x - np.mean(x)) / np.sqrt(np.var(x) + 1e-5) * weight + bias


def column_norm(x, weight, bias):
    return (x - np.mean(x, 0)) / np.sqrt(np.var(x, 0) + 1e-5) * weight + bias


def each(f):
    return lambda x: np.array([f(float(v)) for v in np.ravel(x)]).reshape(np.shape(x))


def smooth(v, a=0.7978845608028654, c=0.044715, half=0.5, one=1.0):
    return half * v * (one + math.tanh(a * (v + c * v * v * v)))


def sigmoid(v):
    return 1 / (1 + math.exp(-v)) if v > -700 else 0.0


bend = each(smooth)


def network(x, weights, layer, act=bend, b1=1, b2=1, stop=False, last=None):
    h = np.matmul(x, weights[f"h.{layer}.mlp.c_fc.weight"]) + b1 * weights[f"h.{layer}.mlp.c_fc.bias"]
    if stop:
        return act(h)
    y = np.matmul(act(h), weights[f"h.{layer}.mlp.c_proj.weight"]) + b2 * weights[f"h.{layer}.mlp.c_proj.bias"]
    return y if last is None else last(y)


def steps(x, weights, layer, n_head, cache=None, one="ln_1", two="ln_2", keep=(1, 1), first=True, second=True, stale=False, post=False, pass_on=True):
    def norm(name, y):
        return y if name is None else row_norm(y, weights[f"h.{layer}.{name}.weight"], weights[f"h.{layer}.{name}.bias"])

    start = x
    if first:
        read = whole(x if post else norm(one, x), weights, layer, n_head, cache if pass_on else None)
        x = keep[0] * x + read
        x = norm(one, x) if post else x
    if second:
        made = network(x if post else norm(two, start if stale else x), weights, layer)
        x = keep[1] * x + made
        x = norm(two, x) if post else x
    return x


MUTANTS = {
    "layer_norm": [
        (column_norm, "mean runs over the tokens"),
        (whole_norm, "One mean for all"),
        (lambda x, w, b: row_norm(x, w, b, power=1), "divides by the variance"),
        (lambda x, w, b: row_norm(x, w, b, eps=0), "1e-5 is missing"),
        (lambda x, w, b: row_norm(x, w, b, less=1), "n - 1"),
        (lambda x, w, b: row_norm(x, w, b, mean=False), "mean is not subtracted"),
        (lambda x, w, b: row_norm(x, np.ones_like(w), b), "weight is missing"),
        (lambda x, w, b: row_norm(x, w, np.zeros_like(b)), "bias is missing"),
        (lambda x, w, b: row_norm(x, w, b, eps=0, late=1e-5), "added to the root"),
    ],
    "gelu": [
        (each(lambda v: v if v > 0 else 0.0), "ReLU"),
        (each(lambda v: v * (1 + math.erf(v / 2**0.5)) / 2), "exact GELU"),
        (each(lambda v: v * sigmoid(v)), "SiLU"),
        (each(lambda v: v * sigmoid(1.702 * v)), "sigmoid form"),
        (each(lambda v: smooth(v, half=1)), "half is missing"),
        (each(lambda v: smooth(v, c=0)), "cubed term"),
        (each(lambda v: smooth(v, a=2 / math.pi)), "square root"),
    ],
    "mlp": [
        (lambda x, w, n: network(x, w, n, act=lambda y: y), "GELU between"),
        (lambda x, w, n: network(x, w, n, act=each(lambda v: max(v, 0.0))), "ReLU"),
        (lambda x, w, n: network(x, w, n, last=bend), "after the second layer"),
        (lambda x, w, n: network(x, w, n, b1=0), "bias of c_fc"),
        (lambda x, w, n: network(x, w, n, b2=0), "bias of c_proj"),
        (lambda x, w, n: network(x, w, n, stop=True), "c_proj, is missing"),
        (lambda x, w, n: network(x, w, n) + x, "input is added"),
    ],
    "block": [
        (lambda *a: steps(*a, keep=(0, 1)), "first sum is missing"),
        (lambda *a: steps(*a, keep=(1, 0)), "second sum is missing"),
        (lambda *a: steps(*a, one=None), "ln_1, is missing"),
        (lambda *a: steps(*a, two="ln_1"), "ln_1 is used twice"),
        (lambda *a: steps(*a, one="ln_2", two="ln_1"), "exchanged"),
        (lambda *a: steps(*a, post=True), "after the sums"),
        (lambda *a: steps(*a, second=False), "MLP is missing"),
        (lambda *a: steps(*a, stale=True), "as it was before attention"),
        (lambda *a: steps(*a, pass_on=False), "not handed on"),
    ],
}
OTHER_STYLE = {
    "layer_norm": row_norm,
    "gelu": bend,
    "mlp": network,
    "block": steps,
}
