"""Lesson 4: the mask, and several heads at once."""

import math

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake
from glassgpt.course.exercises.lesson03_attention import softmax
from glassgpt.course.exercises.toy import N_HEAD, C, toy_cache, toy_weights
from glassgpt.course.models import shape, trace, weights


def causal_mask(n):
    return np.tri(n, dtype=bool)  # (T, T), True where the column is not later than the row


def attention(q, k, v):
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])  # (..., T, L)
    visible = np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)  # the queries are the last of the keys
    return softmax(np.where(visible, scores, -np.inf)) @ v  # (..., T, D)


def split_heads(x, n_head):
    n_tokens, width = x.shape
    return x.reshape(n_tokens, n_head, width // n_head).swapaxes(0, 1)  # (H, T, D)


def merge_heads(heads):
    n_head, n_tokens, width = heads.shape
    return heads.swapaxes(0, 1).reshape(n_tokens, n_head * width)  # (T, C)


def linear(x, w, b):
    return x @ w + b


def self_attention(x, weights, layer, n_head, cache=None):
    name = f"h.{layer}.attn"
    qkv = linear(x, weights[f"{name}.c_attn.weight"], weights[f"{name}.c_attn.bias"])  # (T, 3 C)
    q, k, v = (split_heads(part, n_head) for part in np.split(qkv, 3, axis=-1))  # (H, T, D)
    if cache is not None:  # lesson 8
        if layer in cache:
            k, v = (np.concatenate(pair, axis=1) for pair in zip(cache[layer], (k, v)))  # (H, L, D)
        cache[layer] = k, v
    merged = merge_heads(attention(q, k, v))  # (T, C)
    return linear(merged, weights[f"{name}.c_proj.weight"], weights[f"{name}.c_proj.bias"])


def attention_inputs(rng):
    sizes = (((4, 3), (4, 3)), ((2, 5, 4), (2, 5, 4)), ((3, 3, 3), (3, 3, 3)), ((2, 1, 4), (2, 6, 4)), ((2, 2, 4), (2, 5, 4)))
    made = [(rng.normal(size=q) * 2, rng.normal(size=k) * 2, rng.normal(size=k)) for q, k in sizes]
    steps = trace()
    return [*made, tuple(np.asarray(steps[f"h.1.attn.{name}"]) for name in "qkv")]


def linear_inputs(rng):
    made = [(rng.normal(size=s), rng.normal(size=w), rng.normal(size=w[1])) for s, w in (((3, 2), (2, 5)), ((4, 4), (4, 4)), ((2, 3, 4), (4, 1)))]
    own = weights()
    return [*made, (np.asarray(trace()["h.0.ln_1"]), own["h.0.attn.c_attn.weight"], own["h.0.attn.c_attn.bias"])]


def self_attention_inputs(rng):
    toy = toy_weights(rng)
    made = [(rng.normal(size=(n, C)), toy, layer, N_HEAD, *rest) for n, layer, rest in ((4, 0, ()), (1, 1, ()), (3, 1, ({},)), (8, 0, ({},)))]
    cached = (rng.normal(size=(2, C)), toy, 1, N_HEAD, toy_cache(rng, 3))
    return [*made, cached, (np.asarray(trace()["h.3.ln_1"]), weights(), 3, shape()[1])]


def attend_with(q, k, v, scale=None, mask="causal", fill=-np.inf, shares=softmax, of=None):
    T, L = q.shape[-2], k.shape[-2]
    scores = q @ k.swapaxes(-1, -2) / (math.sqrt(q.shape[-1]) if scale is None else scale)
    visible = {
        "causal": np.tri(T, L, L - T),
        "above": 1 - np.tri(T, L, L - T - 1),
        "strict": np.tri(T, L, L - T - 1),
        "ahead": np.tri(T, L, L - T + 1),
        "first": np.tri(T, L),
        "none": np.ones((T, L)),
    }[mask]
    return shares(np.where(visible > 0, scores, fill)) @ (v if of is None else of)


def mask_after(q, k, v, again=False):
    T, L = q.shape[-2], k.shape[-2]
    shares = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) * np.tri(T, L, L - T)
    return shares / shares.sum(-1, keepdims=True) @ v if again else shares @ v


def column_softmax(x):
    made = np.exp(x - x.max(-2, keepdims=True))
    return made / made.sum(-2, keepdims=True)


def own_attention(x, weights, layer, n_head, cache=None, order="qkv", bias=True, project=True, attend=attention, remember=True, read=True, matrix="c_attn", split=split_heads, merge=merge_heads, out_bias=True):
    name = f"h.{layer}.attn"
    qkv = x @ weights[f"{name}.c_attn.weight"] + (weights[f"{name}.c_attn.bias"] if bias else 0)
    parts = dict(zip(order, np.split(qkv, 3, axis=-1)))
    q, k, v = (split(parts[letter], n_head) for letter in "qkv")
    if cache is not None:
        if layer in cache and read:
            k, v = (np.concatenate(pair, axis=1) for pair in zip(cache[layer], (k, v)))
        if remember:
            cache[layer] = k, v
    merged = merge(attend(q, k, v))
    if not project:
        return merged
    return merged @ weights[f"{name}.c_proj.weight"] + (weights[f"{name}.c_proj.bias"] if out_bias else 0)


def wide_scale(n_head):
    return lambda q, k, v: attend_with(q, k, v, scale=math.sqrt(q.shape[-1] * n_head))


def turned_all(q, k, v, masked=False):
    scores = q @ k.T / math.sqrt(q.shape[-1])
    if masked:
        T, L = scores.shape[-2:]
        scores = np.where(np.tri(T, L, L - T), scores, -np.inf)
    return softmax(scores) @ v


def counted_by_len(q, k, v):
    visible = np.tri(len(q), len(k), len(k) - len(q))
    return softmax(np.where(visible, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -np.inf)) @ v


def heads_first(x, weights, layer, n_head, cache=None):
    name = f"h.{layer}.attn"
    qkv = split_heads(linear(x, weights[f"{name}.c_attn.weight"], weights[f"{name}.c_attn.bias"]), n_head)
    q, k, v = np.split(qkv, 3, axis=-1)
    if cache is not None:
        if layer in cache:
            k, v = (np.concatenate(pair, axis=1) for pair in zip(cache[layer], (k, v)))
        cache[layer] = k, v
    return linear(merge_heads(attention(q, k, v)), weights[f"{name}.c_proj.weight"], weights[f"{name}.c_proj.bias"])


EXERCISES = [
    Exercise(
        "causal_mask", 4, "Return a (n, n) array of True and False: row t is True for the columns 0 to t.",
        causal_mask, lambda rng: [(n,) for n in (1, 2, 3, 6)],
        (
            Mistake(lambda n: np.tri(n, dtype=bool).T, "The mask is above the diagonal instead of below: each token would see only what comes later. Turn it around."),
            Mistake(lambda n: np.tri(n, k=-1, dtype=bool), "A token does not see itself: the diagonal has to be True."),
            Mistake(lambda n: ~np.tri(n, dtype=bool), "True and False are exchanged. True means: may look."),
            Mistake(lambda n: np.tri(n, k=1, dtype=bool), "Each token also sees the next one, which it has to predict."),
            Mistake(lambda n: np.tri(n), "These are zeros and ones as decimal numbers. Use dtype=bool."),
            Mistake(lambda n: np.ones((n, n), dtype=bool), "Everyone sees everything. Later columns have to be False."),
            Mistake(lambda n: np.eye(n, dtype=bool), "Each token sees only itself. Earlier tokens are visible, too."),
            Mistake(lambda n: np.where(np.tri(n), 0.0, -np.inf), "These are the numbers to add to the scores. Return True and False."),
            Mistake(lambda n: np.tri(n, dtype=int), "These are zeros and ones. Use dtype=bool."),
        ),
        ("np.tri(3) shows the shape.", "column <= row is the rule: np.arange(n)[None] <= np.arange(n)[:, None]"),
    ),
    Exercise(
        "attention", 4, "Attention of many queries at once: scores, scale, mask, softmax, blend. The T queries are the last T of the L keys.",
        attention, attention_inputs,
        (
            Mistake(lambda q, k, v: attend_with(q, k, v, scale=1), "The scale is missing: divide the scores by the root of the width, q.shape[-1]."),
            Mistake(lambda q, k, v: attend_with(q, k, v, scale=q.shape[-1]), "The scores are divided by the width. Divide by its square root."),
            Mistake(lambda q, k, v: attend_with(q, k, v, scale=1 / math.sqrt(q.shape[-1])), "The scores are multiplied by the root of the width. Divide by it."),
            Mistake(lambda q, k, v: attend_with(q, k, v, scale=math.sqrt(k.shape[-2])), "The root is that of the number of keys. Take the width: q.shape[-1]."),
            Mistake(lambda q, k, v: attend_with(q, k, v, scale=math.sqrt(len(q))), "The root is that of len(q), which is the number of heads or of queries. The width is q.shape[-1]."),
            Mistake(lambda q, k, v: attend_with(q, k, v, mask="none"), "The mask is missing: every query sees what comes later."),
            Mistake(lambda q, k, v: attend_with(q, k, v, mask="above"), "The mask is above the diagonal instead of below: queries see only what comes later, and themselves."),
            Mistake(lambda q, k, v: attend_with(q, k, v, mask="strict"), "A query does not see its own key. The diagonal is visible."),
            Mistake(lambda q, k, v: attend_with(q, k, v, mask="ahead"), "Each query also sees the next key, which it has to predict."),
            Mistake(lambda q, k, v: attend_with(q, k, v, mask="first"), "Right where there are as many queries as keys. If there are fewer, they are the last ones: query t sees the keys up to t + L - T."),
            Mistake(lambda q, k, v: attend_with(q, k, v, fill=0.0), "Hidden scores are 0, and e to the power of 0 is 1: they still get a share. Use -np.inf."),
            Mistake(mask_after, "The mask comes after the softmax, so that rows no longer sum to 1. Mask the scores before it."),
            Mistake(lambda q, k, v: attend_with(q, k, v, shares=column_softmax), "The softmax runs over the queries. Each query shares among its keys: the last axis."),
            Mistake(lambda q, k, v: attend_with(q, k, v, of=k), "The keys are blended. Blend the values."),
            Mistake(lambda q, k, v: attend_with(q, v, v), "The queries are compared with the values. Compare them with the keys."),
            Mistake(lambda q, k, v: attend_with(q, k, v, shares=lambda x: np.where(np.isfinite(x), x, 0.0)), "The softmax is missing."),
            Mistake(lambda q, k, v: attend_with(q, k, v, shares=lambda x: np.exp(x - x.max(-1, keepdims=True))), "The shares are not divided by their sum."),
            Mistake(turned_all, "The mask is missing. And .T turns all three axes of (H, T, D): write k.swapaxes(-1, -2)."),
            Mistake(lambda q, k, v: turned_all(q, k, v, masked=True), "Right for one head. With several, .T turns all three axes: write k.swapaxes(-1, -2)."),
            Mistake(lambda q, k, v: attend_with(q, k, v, scale=math.sqrt(q.shape[-2])), "The root is that of the number of queries. The width is q.shape[-1]."),
            Mistake(counted_by_len, "len(q) is the number of heads if there are several. T is q.shape[-2], L is k.shape[-2]."),
        ),
        ("q @ k.swapaxes(-1, -2) is every query times every key, (..., T, L).", "np.where(visible, scores, -np.inf) hides; e to the power of -infinity is 0.", "np.tri(T, L, L - T, dtype=bool) is the mask for the last T of L."),
        keep=True,
    ),
    Exercise(
        "split_heads", 4, "Cut each row of (T, C) into n_head parts of equal width, and put the heads first: (H, T, D).",
        split_heads, lambda rng: [(rng.normal(size=s), n) for s, n in (((3, 8), 2), ((4, 4), 4), ((2, 6), 3), ((5, 4), 1), ((4, 16), 4))],
        (
            Mistake(lambda x, n: x.reshape(n, x.shape[0], -1), "The shape is right and the numbers are mixed up: this cuts the text, not each row. First (T, H, D), then exchange the first two axes."),
            Mistake(lambda x, n: x.reshape(x.shape[0], n, -1), "The heads have to come first: exchange the first two axes."),
            Mistake(lambda x, n: x.reshape(x.shape[0], -1, n).transpose(2, 0, 1), "Each head gets every n-th column. Head 0 is the first D columns, head 1 the next D."),
            Mistake(lambda x, n: split_heads(x, n).swapaxes(1, 2), "The last two axes are exchanged: (H, T, D)."),
            Mistake(lambda x, n: split_heads(x, n)[::-1], "The heads are in reverse order."),
            Mistake(lambda x, n: x.reshape(x.shape[0], n, -1).T, ".T turns all axes around. Exchange only the first two: swapaxes(0, 1)."),
            Mistake(lambda x, n: np.stack([x] * n), "Every head has the whole row. Each gets its own part."),
            Mistake(lambda x, n: x.reshape(n, -1, x.shape[0]), "Reshape keeps the order of the numbers: first (T, H, D), then exchange the first two axes."),
            Mistake(lambda x, n: x[:, : x.shape[1] // n], "This is only the first head."),
            Mistake(lambda x, n: np.split(x, n, axis=-1), "This is a list of arrays: np.stack(...) makes one array of it."),
        ),
        ("reshape(T, n_head, C // n_head) cuts each row.", "swapaxes(0, 1) exchanges the first two axes."),
        keep=True,
    ),
    Exercise(
        "merge_heads", 4, "Put the heads (H, T, D) side by side again: (T, C), the opposite of split_heads.",
        merge_heads, lambda rng: [(rng.normal(size=s),) for s in ((2, 3, 4), (4, 4, 1), (3, 2, 2), (1, 5, 4), (4, 4, 4))],
        (
            Mistake(lambda h: h.reshape(h.shape[1], -1), "The shape is right and the numbers are mixed up: exchange the first two axes before the reshape."),
            Mistake(lambda h: h.sum(0), "The heads are added up. Put them side by side."),
            Mistake(lambda h: h.mean(0), "This is the mean of the heads. Put them side by side."),
            Mistake(lambda h: h.transpose(1, 2, 0).reshape(h.shape[1], -1), "The heads are interleaved: first all numbers of head 0, then those of head 1."),
            Mistake(lambda h: h.T.reshape(h.shape[1], -1), "h.T turns all axes around. Exchange only the first two: h.swapaxes(0, 1)."),
            Mistake(lambda h: h.reshape(-1, h.shape[-1]), "The heads are below each other. Put them side by side: each token has one row."),
            Mistake(lambda h: h.swapaxes(0, 1), "The heads are still apart: reshape to (T, H * D)."),
            Mistake(lambda h: merge_heads(h[::-1]), "The heads are in reverse order."),
            Mistake(lambda h: h[0], "This is only the first head."),
            Mistake(lambda h: merge_heads(h).T, "Rows and columns are exchanged: each token has one row."),
        ),
        ("First swapaxes(0, 1), then reshape.", "np.concatenate(list(heads), axis=-1) does it, too."),
        keep=True,
    ),
    Exercise(
        "linear", 4, "Multiply each row of x by the matrix w, which is (in, out), and add the bias b.",
        linear, linear_inputs,
        (
            Mistake(lambda x, w, b: x @ w, "The bias is missing: + b."),
            Mistake(lambda x, w, b: x @ w - b, "The bias is subtracted. Add it."),
            Mistake(lambda x, w, b: x @ w + b.mean(), "The mean of the bias is added. Each output has its own."),
            Mistake(lambda x, w, b: x @ w.T + b, "GPT-2's matrices are (in, out), so they are not turned. (PyTorch's Linear keeps them the other way.)"),
            Mistake(lambda x, w, b: (x @ w) * b, "The bias multiplies. Add it."),
            Mistake(lambda x, w, b: x @ w + b.sum(), "The sum of the bias is added. Each output has its own."),
            Mistake(lambda x, w, b: np.maximum(x @ w + b, 0), "Negative numbers are cut off. A linear layer has no activation."),
            Mistake(lambda x, w, b: (x @ w + b).sum(-1), "The outputs are added up. Keep each of them."),
        ),
        ("x @ w multiplies every row of x by w.",),
        keep=True,
    ),
    Exercise(
        "self_attention", 4, "Make queries, keys and values by c_attn, attend in every head, merge the heads, and apply c_proj.",
        self_attention, self_attention_inputs,
        (
            Mistake(lambda *a: own_attention(*a, project=False), "The projection is missing: after merging the heads, apply c_proj."),
            Mistake(lambda *a: own_attention(*a, bias=False), "The bias of c_attn is missing."),
            Mistake(lambda *a: own_attention(*a, out_bias=False), "The bias of c_proj is missing."),
            Mistake(lambda *a: own_attention(*a, order="kqv"), "Queries and keys are exchanged: c_attn gives queries, keys, values, in this order."),
            Mistake(lambda *a: own_attention(*a, order="qvk"), "Keys and values are exchanged: c_attn gives queries, keys, values, in this order."),
            Mistake(lambda *a: own_attention(*a, order="vkq"), "Queries and values are exchanged: c_attn gives queries, keys, values, in this order."),
            Mistake(lambda *a: own_attention(*a, split=lambda x, n: x.reshape(n, x.shape[0], -1)), "The heads are cut out of the text instead of out of each row: use split_heads."),
            Mistake(lambda *a: own_attention(*a, merge=lambda h: h.reshape(h.shape[1], -1)), "The heads are merged in the wrong order: use merge_heads."),
            Mistake(lambda x, w, layer, n, cache=None: own_attention(x, w, layer, 1, cache), "There is only one head, as wide as the row: use n_head of them."),
            Mistake(lambda x, w, layer, n, cache=None: own_attention(x, w, layer, n, cache, attend=wide_scale(n)), "The scores are divided by the root of the whole width. Divide by that of one head."),
            Mistake(lambda *a: own_attention(*a, attend=lambda q, k, v: attend_with(q, k, v, mask="none")), "The mask is missing: use attention."),
            Mistake(lambda *a: own_attention(*a, attend=lambda q, k, v: attend_with(q, k, v, scale=1)), "The scale is missing: use attention."),
            Mistake(lambda *a: own_attention(*a[:4]), "The cache is not used. Keep the lines with `cache` as they are given."),
            Mistake(lambda *a: own_attention(*a, remember=False), "The new keys and values are not put into the cache. Keep the lines with `cache` as they are given."),
            Mistake(lambda *a: own_attention(*a, read=False), "The keys and values in the cache are not read. Keep the lines with `cache` as they are given."),
            Mistake(lambda x, w, layer, n, cache=None: own_attention(x, w, 0, n, cache), "It always uses the weights of block 0. Use those of `layer`."),
            Mistake(lambda x, *a: x + own_attention(x, *a), "The input is added. That sum is part of the block, in lesson 5."),
            Mistake(lambda *a: own_attention(*a, split=lambda x, n: x, merge=lambda h: h), "The heads are missing: split_heads before attention, merge_heads after it."),
            Mistake(heads_first, "The heads are cut before queries, keys and values are apart. First np.split(qkv, 3, axis=-1), then split_heads of each."),
        ),
        ("The names are f\"h.{layer}.attn.c_attn.weight\" and so on.", "np.split(qkv, 3, axis=-1) gives q, k and v, each (T, C).", "linear, np.split, split_heads three times, attention, merge_heads, linear."),
        keep=True, changes=(4,),
    ),
]
