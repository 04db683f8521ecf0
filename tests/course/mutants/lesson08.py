"""Wrong and right solutions of lesson 8, written apart from the exercises' own."""

import numpy as np

from glassgpt.course.exercises.lesson06_stack import gpt2


def one_by_one(rows, inner, columns):
    return sum(inner for _ in range(rows) for _ in range(columns))


def layers(n_new, n_cached, n_embd):
    """Rows, inner and columns of each product in a block."""
    c, n_keys = n_embd, n_new + n_cached
    return {
        "qkv": (n_new, c, 3 * c),
        "scores": (n_new, c, n_keys),
        "sums": (n_new, n_keys, c),
        "proj": (n_new, c, c),
        "up": (n_new, c, 4 * c),
        "down": (n_new, 4 * c, c),
    }


def total(sizes):
    return sum(a * b * c for a, b, c in sizes.values())


def without(*names):
    return lambda n, m, c: total({k: v for k, v in layers(n, m, c).items() if k not in names})


def only_new(n_new, n_cached, n_embd):
    sizes = layers(n_new, n_cached, n_embd)
    sizes["scores"] = sizes["scores"][:2] + (n_new,)
    sizes["sums"] = (n_new, n_new, n_embd)
    return total(sizes)


def one_of_three(n_new, n_cached, n_embd):
    return total({**layers(n_new, n_cached, n_embd), "qkv": (n_new, n_embd, n_embd)})


def stacked(cache, layer, k, v):
    own = cache.setdefault(layer, (k[:, :0], v[:, :0]))
    cache[layer] = tuple(np.hstack(pair) for pair in zip(own, (k, v)))
    return cache[layer]


def forgets(cache, layer, k, v):
    cache.update({layer: (k, v)})
    return cache[layer]


def never_stores(cache, layer, k, v):
    return stacked(dict(cache), layer, k, v)


def stores_the_new(cache, layer, k, v):
    result = stacked(dict(cache), layer, k, v)
    cache[layer] = k, v
    return result


def along_the_heads(cache, layer, k, v):
    if layer in cache:
        k, v = np.vstack([cache[layer][0], k]), np.vstack([cache[layer][1], v])
    cache[layer] = k, v
    return k, v


def new_ones_first(cache, layer, k, v):
    if layer in cache:
        k, v = np.hstack([k, cache[layer][0]]), np.hstack([v, cache[layer][1]])
    cache[layer] = k, v
    return k, v


def exchanged(cache, layer, k, v):
    k, v = stacked(cache, layer, k, v)
    return v, k


def words(ids, n, weights, n_layer, n_head):
    cache, new = {}, []
    logits = gpt2(ids, weights, n_layer, n_head, cache)
    while len(new) < n:
        new.append(int(logits[-1].argmax()))
        logits = gpt2(new[-1:], weights, n_layer, n_head, cache)
    return new


def words_recomputed(ids, n, weights, n_layer, n_head):
    text = list(ids)
    for _ in range(n):
        text.append(int(gpt2(text, weights, n_layer, n_head)[-1].argmax()))
    return text[len(ids) :]


def forgetful(ids, n, weights, n_layer, n_head):
    new, unseen = [], list(ids)
    while len(new) < n:
        new.append(int(gpt2(unseen, weights, n_layer, n_head, {})[-1].argmax()))
        unseen = new[-1:]
    return new


def read_again(ids, n, weights, n_layer, n_head):
    cache, text = {}, list(ids)
    for _ in range(n):
        text += [int(gpt2(text, weights, n_layer, n_head, cache)[-1].argmax())]
    return text[len(ids) :]


def first_row(ids, n, weights, n_layer, n_head):
    cache, new, unseen = {}, [], ids
    for _ in range(n):
        unseen = [int(np.argmax(gpt2(unseen, weights, n_layer, n_head, cache)[0]))]
        new += unseen
    return new


def stuck(ids, n, weights, n_layer, n_head):
    return [int(gpt2(ids, weights, n_layer, n_head)[-1].argmax()) for _ in range(n)]


MUTANTS = {
    "matmul_multiplications": [
        (lambda a, b, c: one_by_one(a, b, c) * 2, "additions are counted"),
        (lambda a, b, c: c * a, "number of results"),
        (lambda a, b, c: b * (a + c), "how many numbers the two matrices hold"),
        (lambda a, b, c: one_by_one(a, b, c) - a * c, "number of additions"),
        (lambda a, b, c: b * a, "columns are missing"),
        (lambda a, b, c: c * b, "rows are missing"),
    ],
    "block_multiplications": [
        (only_new, "meet only each other"),
        (lambda n, m, c: total(layers(n + m, 0, c)), "without a cache"),
        (without("sums"), "One of them is missing"),
        (without("scores", "sums"), "attention itself is missing"),
        (without("up", "down"), "MLP is missing"),
        (without("proj"), "projection of the merged heads"),
        (one_of_three, "three products"),
        (without("down"), "up and down"),
    ],
    "extend_cache": [
        (forgets, "old keys and values are lost"),
        (never_stores, "Nothing is stored"),
        (stores_the_new, "Only the new keys and values are stored"),
        (along_the_heads, "along the heads"),
        (new_ones_first, "before the old ones"),
        (exchanged, "exchanged"),
    ],
    "cache_bytes": [
        (lambda t, n, c, b: t * n * c * b, "both kept"),
        (lambda t, n, c, b: t * c * b * 2, "blocks are missing"),
        (lambda t, n, c, b: 2 * t * n * c, "not bytes"),
        (lambda t, n, c, b: 8 * 2 * t * n * c * b, "bits"),
        (lambda t, n, c, b: n * c * b * (t**2) * 2, "squared"),
        (lambda t, n, c, b: t * n * c * b * 3, "Queries"),
    ],
    "generate": [
        (forgetful, "forgotten"),
        (read_again, "read again"),
        (first_row, "logits of the first token"),
        (stuck, "same token comes every time"),
        (lambda ids, n, *rest: list(ids) + words(ids, n, *rest), "prompt is part"),
        (lambda ids, n, *rest: words(ids, n, *rest)[:-1], "One token is missing"),
    ],
}

OTHER_STYLE = {
    "matmul_multiplications": one_by_one,
    "block_multiplications": lambda n, m, c: total(layers(n, m, c)),
    "extend_cache": stacked,
    "cache_bytes": lambda t, n, c, b: sum(t * c * b for _ in ("keys", "values") for _ in range(n)),
    "generate": words_recomputed,
}
