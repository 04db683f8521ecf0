"""Wrong and right solutions of lesson 4."""

import math

import numpy as np


def mask_by(rule):
    return lambda n: np.array([[rule(row, column) for column in range(n)] for row in range(n)])


def soft(row):
    powers = [math.exp(s - max(row)) if s != -math.inf else 0.0 for s in row]
    return [p / sum(powers) for p in powers]


def slow_attention(q, k, v, sees=lambda t, j, T, L: j <= t + L - T, divide=None, hidden=-math.inf, late=False, read=None, top=None):
    """Attention by loops over heads, queries and keys."""
    lead, T, L, D = q.shape[:-2], q.shape[-2], k.shape[-2], q.shape[-1]
    qs, ks, vs = (a.reshape(-1, *a.shape[-2:]) for a in (q, k, v))
    out = []
    for head in range(len(qs)):
        rows = []
        for t in range(T):
            scores = [float(qs[head, t] @ (ks if top is None else vs)[head, j]) / (math.sqrt(D) if divide is None else divide(D, L)) for j in range(L)]
            if late:
                shares = [s if sees(t, j, T, L) else 0.0 for j, s in enumerate(soft(scores))]
            else:
                shares = soft([s if sees(t, j, T, L) else hidden for j, s in enumerate(scores)])
            rows.append(sum(share * value for share, value in zip(shares, (vs if read is None else ks)[head])))
        out.append(rows)
    return np.array(out).reshape(*lead, T, v.shape[-1])


def split_by_slices(x, n_head):
    width = x.shape[1] // n_head
    return np.stack([x[:, h * width : (h + 1) * width] for h in range(n_head)])


def merge_by_rows(heads):
    return np.array([np.concatenate([head[t] for head in heads]) for t in range(heads.shape[1])])


def whole(x, weights, layer, n_head, cache=None, names="qkv", b1=True, b2=True, out=True, split=split_by_slices, merge=merge_by_rows, at=None, store=True, load=True, attend=slow_attention):
    layer = layer if at is None else at
    start = f"h.{layer}.attn."
    W = {key.removeprefix(start): value for key, value in weights.items() if key.startswith(start)}
    mixed = x.dot(W["c_attn.weight"]) + W["c_attn.bias"] * b1
    C = x.shape[1]
    named = {name: split(mixed[:, i * C : (i + 1) * C], n_head) for i, name in enumerate(names)}
    q, k, v = named["q"], named["k"], named["v"]
    if cache is not None:
        old = cache.get(layer)
        if old is not None and load:
            k, v = np.concatenate([old[0], k], 1), np.concatenate([old[1], v], 1)
        if store:
            cache[layer] = (k, v)
    y = merge(attend(q, k, v))
    return y.dot(W["c_proj.weight"]) + W["c_proj.bias"] * b2 if out else y


MUTANTS = {
    "causal_mask": [(mask_by(lambda r, c: c >= r), "above the diagonal"), (mask_by(lambda r, c: c < r), "does not see itself"), (mask_by(lambda r, c: c > r), "exchanged"), (mask_by(lambda r, c: float(c <= r)), "dtype=bool"), (mask_by(lambda r, c: c <= r + 1), "next one"), (mask_by(lambda r, c: True), "sees everything")],
    "attention": [
        (lambda q, k, v: slow_attention(q, k, v, divide=lambda D, L: 1), "scale is missing"),
        (lambda q, k, v: slow_attention(q, k, v, divide=lambda D, L: D), "divided by the width"),
        (lambda q, k, v: slow_attention(q, k, v, divide=lambda D, L: L**0.5), "number of keys"),
        (lambda q, k, v: slow_attention(q, k, v, sees=lambda *a: True), "mask is missing"),
        (lambda q, k, v: slow_attention(q, k, v, sees=lambda t, j, T, L: j >= t + L - T), "above the diagonal"),
        (lambda q, k, v: slow_attention(q, k, v, sees=lambda t, j, T, L: j <= t + 1 + L - T), "next key"),
        (lambda q, k, v: slow_attention(q, k, v, sees=lambda t, j, T, L: j <= t), "as many queries as keys"),
        (lambda q, k, v: slow_attention(q, k, v, hidden=0.0), "Hidden scores are 0"),
        (lambda q, k, v: slow_attention(q, k, v, late=True), "after the softmax"),
        (lambda q, k, v: slow_attention(q, k, v, read=1), "keys are blended"),
        (lambda q, k, v: slow_attention(q, k, v, top=1), "compared with the values"),
    ],
    "split_heads": [
        (lambda x, n: np.reshape(x, (n, len(x), -1)), "mixed up"),
        (lambda x, n: np.reshape(x, (len(x), n, -1)), "come first"),
        (lambda x, n: np.stack([x[:, h::n] for h in range(n)]), "n-th column"),
        (lambda x, n: split_by_slices(x, n)[::-1], "reverse order"),
        (lambda x, n: list(split_by_slices(x, n)), "np.stack"),
        (lambda x, n: np.stack([part.T for part in split_by_slices(x, n)]), "last two axes"),
    ],
    "merge_heads": [
        (lambda h: np.reshape(h, (h.shape[1], h.shape[0] * h.shape[2])), "mixed up"),
        (lambda h: sum(h), "added up"),
        (lambda h: np.average(h, axis=0), "mean of the heads"),
        (lambda h: np.concatenate(list(h), axis=0), "below each other"),
        (lambda h: merge_by_rows(h[::-1]), "reverse order"),
        (lambda h: np.array([[h[i, t, d] for d in range(h.shape[2]) for i in range(h.shape[0])] for t in range(h.shape[1])]), "interleaved"),
    ],
    "linear": [
        (lambda x, w, b: np.matmul(x, w), "bias is missing"),
        (lambda x, w, b: np.matmul(x, w) - b, "subtracted"),
        (lambda x, w, b: np.maximum(np.matmul(x, w) + b, 0), "no activation"),
        (lambda x, w, b: np.matmul(x, w) + np.average(b), "mean of the bias"),
        (lambda x, w, b: np.matmul(x, np.transpose(w)) + b, "not turned"),
    ],
    "self_attention": [
        (lambda *a: whole(*a, out=False), "projection is missing"),
        (lambda *a: whole(*a, b1=False), "bias of c_attn"),
        (lambda *a: whole(*a, names="kqv"), "Queries and keys"),
        (lambda *a: whole(*a, names="qvk"), "Keys and values are exchanged"),
        (lambda *a: whole(*a, split=lambda x, n: x.reshape(n, len(x), -1)), "cut out of the text"),
        (lambda *a: whole(*a, merge=lambda h: h.reshape(h.shape[1], -1)), "merged in the wrong order"),
        (lambda *a: whole(*a, attend=lambda q, k, v: slow_attention(q, k, v, sees=lambda *b: True)), "mask is missing"),
        (lambda *a: whole(*a[:4]), "cache is not used"),
        (lambda *a: whole(*a, store=False), "not put into the cache"),
        (lambda *a: whole(*a, at=0), "block 0"),
    ],
}
OTHER_STYLE = {
    "causal_mask": mask_by(lambda r, c: c <= r),
    "attention": slow_attention,
    "split_heads": split_by_slices,
    "merge_heads": merge_by_rows,
    "linear": lambda x, w, b: np.einsum("...i,io->...o", x, w) + b,
    "self_attention": whole,
}
