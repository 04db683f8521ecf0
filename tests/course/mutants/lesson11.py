"""Wrong and right solutions of lesson 11, written apart from the exercises' own."""

import math

import numpy as np


def attend(queries, keys, values, scale=None, hide=None):
    out = []
    for i, q in enumerate(queries):
        scores = [float(q @ k) / (scale or math.sqrt(len(q))) for k in keys]
        if hide is not None:
            scores = [s if not hide(i, j) else -math.inf for j, s in enumerate(scores)]
        e = np.exp(np.array(scores) - max(scores))
        out.append(e / e.sum() @ values)
    return np.array(out)


def softmax_over_rows(x, source, w_q, w_k, w_v):
    scores = (x @ w_q) @ (source @ w_k).T / math.sqrt(w_q.shape[1])
    e = np.exp(scores - scores.max(axis=0))
    return e / e.sum(axis=0) @ (source @ w_v)


def no_softmax(x, source, w_q, w_k, w_v):
    return x @ w_q @ w_k.T @ source.T @ source @ w_v / w_q.shape[1] ** 0.5


def table(rows, columns, seen):
    return np.array([[bool(seen(i, j)) for j in range(columns)] for i in range(rows)])


def bits(nats, tokens, characters):
    return math.log2(math.exp(nats)) * tokens / characters


MUTANTS = {
    "cross_attention": [
        (lambda x, s, q, k, v: attend(x @ q, x @ k, x @ v), "source is not used"),
        (lambda x, s, q, k, v: attend(s @ q, x @ k, x @ v), "two texts are exchanged"),
        (lambda x, s, q, k, v: attend(x @ q, s @ k, s @ v, scale=1), "scale is missing"),
        (lambda x, s, q, k, v: attend(x @ q, s @ k, s @ v, hide=lambda i, j: j > i), "causal mask"),
        (softmax_over_rows, "goes over the tokens of x"),
        (no_softmax, "softmax is missing"),
        (lambda x, s, q, k, v: attend(x @ q, s @ v, s @ k), "Keys and values are exchanged"),
    ],
    "prefix_mask": [
        (lambda n, p: table(n, n, lambda i, j: i >= j), "causal mask"),
        (lambda n, p: table(n, n, lambda i, j: True), "an encoder"),
        (lambda n, p: table(n, n, lambda i, j: i < j >= p), "True and False"),
        (lambda n, p: table(n, n, lambda i, j: i <= j or i < p), "Rows and columns"),
        (lambda n, p: table(n, n, lambda i, j: j <= max(i, p)), "one token too long"),
        (lambda n, p: table(n, n, lambda i, j: j < max(i, p)), "does not see itself"),
    ],
    "memory_mask": [
        (lambda n, m: table(n, n + m, lambda i, j: j <= i), "begins at column 0"),
        (lambda n, m: table(n, n, lambda i, j: j <= i), "columns of the memory are missing"),
        (lambda n, m: table(n, n + m, lambda i, j: True), "sees ahead"),
        (lambda n, m: table(n, n + m, lambda i, j: j - m < i), "does not see itself"),
        (lambda n, m: table(n, n + m, lambda i, j: j - m > i), "True and False"),
        (lambda n, m: table(n, n + m, lambda i, j: 0 <= j - m <= i), "memory is hidden"),
    ],
    "local_mask": [
        (lambda n, b: table(n, n, lambda i, j: j <= i), "causal mask"),
        (lambda n, b: table(n, n, lambda i, j: i - b < j <= i), "moves with the token"),
        (lambda n, b: table(n, n, lambda i, j: divmod(i, b)[0] == divmod(j, b)[0]), "rest of its block"),
        (lambda n, b: table(n, n, lambda i, j: j > i or j < i - i % b), "True and False"),
        (lambda n, b: table(n, n, lambda i, j: j - j % b <= i <= j), "Rows and columns"),
        (lambda n, b: table(n, n, lambda i, j: i - i % b <= j < i), "does not see itself"),
    ],
    "bits_per_character": [
        (lambda nats, t, c: t / c * nats, "nats per character"),
        (lambda nats, t, c: math.log2(math.exp(nats)), "bits per token"),
        (lambda nats, t, c: bits(nats, c, t), "Tokens and characters are exchanged"),
        (lambda nats, t, c: nats * t / c * math.log(2), "multiplied by log"),
        (lambda nats, t, c: bits(nats, t, 1), "bits of the whole text"),
        (lambda nats, t, c: t * nats / c / 2, "not 2"),
    ],
}

OTHER_STYLE = {
    "cross_attention": lambda x, s, q, k, v: attend(x @ q, s @ k, s @ v),
    "prefix_mask": lambda n, p: table(n, n, lambda i, j: j <= i or j < p),
    "memory_mask": lambda n, m: table(n, n + m, lambda i, j: j - m <= i),
    "local_mask": lambda n, b: table(n, n, lambda i, j: i - i % b <= j <= i),
    "bits_per_character": bits,
}
