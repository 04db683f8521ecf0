"""Lesson 3: one query, its keys and its values."""

import math

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake
from glassgpt.course.models import trace


def scaled_scores(query, keys):
    return keys @ query / math.sqrt(len(query))  # (L,)


def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))  # the largest becomes 1: nothing overflows
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def blend(shares, values):
    return shares @ values  # (D,)


def attend(query, keys, values):
    return blend(softmax(scaled_scores(query, keys)), values)


def real_head():
    """Query, keys and values of one head of the shipped model, for one text."""
    steps = trace()
    return [np.asarray(steps[f"h.2.attn.{name}"])[1] for name in "qkv"]  # each (T, D)


def query_inputs(rng):
    q, k, _ = real_head()
    made = [(rng.normal(size=d), rng.normal(size=(n, d))) for d, n in ((4, 3), (16, 5), (1, 2), (3, 3), (6, 1))]
    return [*made, (q[-1], k)]


def softmax_inputs(rng):
    steps = trace()
    made = [rng.normal(size=shape) * 3 for shape in ((5,), (3, 4), (4, 4), (2, 3, 5))]
    masked = np.where(np.tri(4, dtype=bool), rng.normal(size=(4, 4)), -np.inf)
    big = np.array([[1000.0, 999.0, 0.0], [-2000.0, -2001.0, -2000.5]])
    return [(x,) for x in (*made, masked, big, np.asarray(steps["h.0.attn.scaled"]))]


def blend_inputs(rng):
    made = [(rng.dirichlet(np.ones(n)), rng.normal(size=(n, d))) for n, d in ((3, 2), (5, 4), (1, 3), (4, 4))]
    q, k, v = real_head()
    return [*made, (softmax(scaled_scores(q[-1], k)), v)]


def attend_inputs(rng):
    made = [(rng.normal(size=d), rng.normal(size=(n, d)), rng.normal(size=(n, d))) for d, n in ((4, 3), (9, 9), (2, 5))]
    q, k, v = real_head()
    return [*made, (q[-1], k, v)]


def unsafe_softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def shares_with(x, f=np.exp, axis=-1):
    made = f(x - x.max(axis=axis, keepdims=True))
    return made / made.sum(axis=axis, keepdims=True)


EXERCISES = [
    Exercise(
        "scaled_scores", 3, "Return one number for each key: its dot product with the query, divided by the square root of their width.",
        scaled_scores, query_inputs,
        (
            Mistake(lambda q, k: k @ q, "The scale is missing: divide by the square root of the width, math.sqrt(len(query))."),
            Mistake(lambda q, k: k @ q / len(q), "It is divided by the width. Divide by its square root."),
            Mistake(lambda q, k: k @ q * math.sqrt(len(q)), "It is multiplied by the root of the width. Divide by it."),
            Mistake(lambda q, k: k @ q / math.sqrt(len(k)), "The root is that of the number of keys. Take the width of the query: len(query)."),
            Mistake(lambda q, k: k @ q / len(k), "It is divided by the number of keys. Divide by the root of the width of the query."),
            Mistake(lambda q, k: k @ q / (np.linalg.norm(q) * np.linalg.norm(k, axis=1)), "These are cosines. Attention divides by the root of the width, not by the lengths."),
            Mistake(lambda q, k: k * q / math.sqrt(len(q)), "The products of each key are not added up. keys @ query is a dot product for each key."),
            Mistake(lambda q, k: shares_with(k @ q / math.sqrt(len(q))), "These are shares already. The softmax comes next."),
            Mistake(lambda q, k: k @ q / len(q) ** 2, "It is divided by the square of the width. Divide by its root."),
        ),
        ("keys @ query is a dot product for every row of keys.", "The width is len(query)."),
    ),
    Exercise(
        "softmax", 3, "Turn scores into shares along the last axis: e to the power of each, divided by their sum; first subtract the largest.",
        softmax, softmax_inputs,
        (
            Mistake(lambda x: shares_with(x, axis=0), "The sum runs over the first axis, so columns sum to 1. Use axis=-1: rows sum to 1."),
            Mistake(lambda x: shares_with(x, axis=-2) if x.ndim > 1 else softmax(x), "The sum runs over the wrong axis, so columns sum to 1. Use axis=-1: rows sum to 1."),
            Mistake(lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(), "All numbers together sum to 1. Each row has to: axis=-1, keepdims=True."),
            Mistake(lambda x: np.exp(x) / np.exp(x).sum(), "All numbers together sum to 1, and large scores overflow. Use axis=-1, keepdims=True, and subtract the largest first."),
            Mistake(unsafe_softmax, "Right for small scores. e to the power of 1000 is too large for the computer: subtract the largest score of each row first."),
            Mistake(lambda x: np.exp(x - x.max(-1, keepdims=True)), "The numbers are not divided by their sum."),
            Mistake(lambda x: np.exp(x), "The numbers are not divided by their sum, and large scores overflow."),
            Mistake(lambda x: x / x.sum(-1, keepdims=True), "The exponential is missing: np.exp makes every score positive."),
            Mistake(lambda x: shares_with(x, np.exp2), "These are powers of 2. Take powers of e: np.exp."),
            Mistake(lambda x: shares_with(-x), "The sign is turned around: the smallest score gets the largest share."),
            Mistake(lambda x: np.log(softmax(x)), "This is the logarithm of the shares. Leave the logarithm away."),
            Mistake(lambda x: softmax(softmax(x)), "The softmax is applied twice."),
            Mistake(lambda x: (x == x.max(-1, keepdims=True)).astype(float), "The largest score takes all. A softmax gives everyone a share."),
            Mistake(lambda x: x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True), "This is the logarithm of the shares. Take np.exp of it."),
            Mistake(lambda x: x - x.max(-1, keepdims=True), "The largest is subtracted, and nothing else. Take np.exp, then divide by the sum."),
        ),
        ("np.exp takes the exponential of each number.", "sum(axis=-1, keepdims=True) has a shape that a division can use.", "x.max(axis=-1, keepdims=True) is the largest of each row. Subtracting it changes no share."),
        keep=True,
    ),
    Exercise(
        "blend", 3, "Mix the values: each row of values times its share, all added up.",
        blend, blend_inputs,
        (
            Mistake(lambda s, v: s[:, None] * v, "The rows are weighed, and not added up: sum over the first axis."),
            Mistake(lambda s, v: (s[:, None] * v).sum(1), "It adds up along each value. Add up the rows: axis 0."),
            Mistake(lambda s, v: v.mean(0), "This is the plain mean: every value counts the same. Use the shares."),
            Mistake(lambda s, v: v.sum(0), "This is the plain sum. Multiply each value by its share first."),
            Mistake(lambda s, v: v[np.argmax(s)], "This is the value with the largest share. Every value takes part."),
            Mistake(lambda s, v: s @ v / len(s), "This is the mean of the weighed rows, or their sum divided by their number. The shares sum to 1 already: add up."),
            Mistake(lambda s, v: s[::-1] @ v, "The shares are in the wrong order."),
            Mistake(lambda s, v: float((s[:, None] * v).sum()), "This is one number. The result is a vector as wide as a value."),
        ),
        ("The share of row i multiplies values[i].", "shares @ values does both, the product and the sum."),
    ),
    Exercise(
        "attend", 3, "Return what one query reads: scaled scores, softmax, then the blend of the values.",
        attend, attend_inputs,
        (
            Mistake(lambda q, k, v: softmax(k @ q) @ v, "The scale is missing: use scaled_scores."),
            Mistake(lambda q, k, v: softmax(k @ q / len(q)) @ v, "It is divided by the width. Divide by its square root."),
            Mistake(lambda q, k, v: softmax(v @ q / math.sqrt(len(q))) @ v, "The query is compared with the values. Compare it with the keys."),
            Mistake(lambda q, k, v: softmax(k @ q / math.sqrt(len(q))) @ k, "The keys are blended. Blend the values."),
            Mistake(lambda q, k, v: scaled_scores(q, k) @ v, "The softmax is missing: scores are not shares."),
            Mistake(lambda q, k, v: softmax(scaled_scores(q, k)), "These are the shares. Blend the values with them."),
            Mistake(lambda q, k, v: v[np.argmax(k @ q)], "Only the best key's value is read. Every value takes part, by its share."),
            Mistake(lambda q, k, v: v.mean(0), "Every value counts the same. The scores decide the shares."),
            Mistake(lambda q, k, v: softmax(v @ q / math.sqrt(len(q))) @ k, "Keys and values are exchanged."),
            Mistake(lambda q, k, v: attend(q, k, v) + q, "The query is added. That sum comes later, in the block."),
        ),
        ("Three of your functions, one after another.", "blend(softmax(scaled_scores(query, keys)), values)"),
    ),
]
