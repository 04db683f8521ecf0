"""Lesson 8: the KV cache, and the words of the finished model."""

import numpy as np

from glassgpt.course import models
from glassgpt.course.exercise import Exercise, Mistake
from glassgpt.course.exercises.lesson06_stack import gpt2
from glassgpt.course.exercises.lesson07_sampling import pick


def matmul_multiplications(rows, inner, columns):
    return rows * inner * columns


def block_multiplications(n_new, n_cached, n_embd):
    n_keys = n_cached + n_new
    qkv = n_new * n_embd * 3 * n_embd
    scores_and_sums = 2 * n_new * n_keys * n_embd  # the heads together are n_embd wide
    projection = n_new * n_embd * n_embd
    mlp = 2 * n_new * n_embd * 4 * n_embd
    return qkv + scores_and_sums + projection + mlp


def extend_cache(cache, layer, k, v):
    if layer in cache:
        old_k, old_v = cache[layer]
        k = np.concatenate([old_k, k], axis=1)  # (H, L, D)
        v = np.concatenate([old_v, v], axis=1)
    cache[layer] = (k, v)
    return k, v


def cache_bytes(n_tokens, n_layer, n_embd, bytes_per_number):
    return 2 * n_layer * n_tokens * n_embd * bytes_per_number


def generate(ids, n, weights, n_layer, n_head):
    cache = {}
    new = []
    unseen = list(ids)
    for _ in range(n):
        logits = gpt2(unseen, weights, n_layer, n_head, cache)
        token = pick(logits[-1])
        new.append(token)
        unseen = [token]
    return new


def _generate(ids, n, weights, n_layer, n_head, *, row=-1, cached=True, again=False, grow=True):
    """`generate` with some step exchanged."""
    cache = {} if cached else None
    new, unseen = [], list(ids)
    for _ in range(n):
        token = pick(gpt2(unseen, weights, n_layer, n_head, cache)[row])
        new.append(token)
        if grow:
            unseen = [*unseen, token] if again else [token]
    return new


def _generate_inputs(rng):
    weights, (n_layer, n_head) = models.weights("tiny"), models.shape("tiny")
    model = models.model("tiny")
    return [
        (model.encode(text), n, weights, n_layer, n_head)
        for text, n in (("The king gave his", 3), ("He said", 3))
    ]


def _cache_inputs(rng):
    def pair(length):
        return rng.normal(size=(2, length, 3)), rng.normal(size=(2, length, 3))

    return [
        ({}, 0, *pair(4)),
        ({0: pair(4), 1: pair(4)}, 1, *pair(1)),
        ({0: pair(2)}, 0, *pair(3)),
        ({0: pair(3)}, 1, *pair(2)),
        ({2: pair(3)}, 2, *pair(3)),
    ]


def _extend(cache, layer, k, v, *, store=True, axis=1, new_first=False, swap=False, keep_old=False):
    """`extend_cache` with some step exchanged."""
    both = (k, v)
    if layer in cache:
        pairs = zip(cache[layer], (k, v), strict=True)
        both = tuple(np.concatenate([new, old] if new_first else [old, new], axis=axis) for old, new in pairs)
    if store:
        cache[layer] = both if not keep_old else cache.get(layer, both)
    return both[::-1] if swap else both


def _replace(cache, layer, k, v):
    cache[layer] = (k, v)
    return k, v


def _unasked(cache, layer, k, v):
    old_k, old_v = cache[layer]
    cache[layer] = np.concatenate([old_k, k], axis=1), np.concatenate([old_v, v], axis=1)
    return cache[layer]


def _store_new(cache, layer, k, v):
    both = _extend(cache, layer, k, v, store=False)
    cache[layer] = (k, v)
    return both


def _one_place(cache, layer, k, v):
    both = _extend(cache, layer, k, v, store=False)
    cache[0] = both
    return both


EXERCISES = [
    Exercise(
        name="matmul_multiplications",
        lesson=8,
        task="Count the multiplications in a product of matrices, (rows, inner) times (inner, columns).",
        solution=matmul_multiplications,
        inputs=lambda rng: [(1, 128, 384), (6, 32, 6), (40, 128, 512), (2, 3, 4)],
        hints=(
            "The result has rows x columns numbers. How many multiplications does one of them need?",
            "One number of the result is a dot product of `inner` pairs.",
        ),
        mistakes=(
            Mistake(
                lambda rows, inner, columns: 2 * rows * inner * columns,
                "The additions are counted as well. Count the multiplications alone.",
            ),
            Mistake(
                lambda rows, inner, columns: rows * columns,
                "This is the number of results. Each of them is a dot product of `inner` pairs.",
            ),
            Mistake(
                lambda rows, inner, columns: rows * inner + inner * columns,
                "This is how many numbers the two matrices hold. Count what is multiplied.",
            ),
            Mistake(
                lambda rows, inner, columns: rows * (inner - 1) * columns,
                "This is the number of additions. A dot product of n pairs has n multiplications.",
            ),
            Mistake(
                lambda rows, inner, columns: rows * inner,
                "The columns are missing: every row of the first matrix meets every column of the second.",
            ),
            Mistake(
                lambda rows, inner, columns: inner * columns,
                "The rows are missing: this is the work for one row.",
            ),
            Mistake(
                lambda rows, inner, columns: rows + inner + columns,
                "The sizes are added. Multiply them.",
            ),
        ),
    ),
    Exercise(
        name="block_multiplications",
        lesson=8,
        task="Count the multiplications of one block for n_new tokens, when the cache has n_cached tokens already.",
        solution=block_multiplications,
        inputs=lambda rng: [(6, 0, 128), (1, 5, 128), (1, 39, 128), (40, 0, 128), (1, 1023, 768), (3, 7, 64)],
        hints=(
            "Five products of matrices: queries-keys-values, scores, weighted sums, projection, and the MLP's two.",
            "Per new token: 3 C C for queries, keys and values, C C for the projection, 4 C C twice for the MLP.",
            "Scores and sums: each new token meets all n_cached + n_new keys, with C multiplications each, twice.",
        ),
        mistakes=(
            Mistake(
                lambda n_new, n_cached, n_embd: 12 * n_new * n_embd**2 + 2 * n_new * n_new * n_embd,
                "The new tokens meet only each other. They also meet the keys and values of the cache.",
            ),
            Mistake(
                lambda n_new, n_cached, n_embd: block_multiplications(n_new + n_cached, 0, n_embd),
                "This is the work without a cache: all tokens again. Only the new ones are computed.",
            ),
            Mistake(
                lambda n_new, n_cached, n_embd: 12 * n_new * n_embd**2 + n_new * (n_cached + n_new) * n_embd,
                "The scores and the weighted sums are two products. One of them is missing.",
            ),
            Mistake(
                lambda n_new, n_cached, n_embd: 12 * n_new * n_embd**2,
                "The attention itself is missing: each new token meets every key, and sums every value.",
            ),
            Mistake(
                lambda n_new, n_cached, n_embd: block_multiplications(n_new, n_cached, n_embd) - 8 * n_new * n_embd**2,
                "The MLP is missing: up to 4 C and down again, 4 C C each.",
            ),
            Mistake(
                lambda n_new, n_cached, n_embd: block_multiplications(n_new, n_cached, n_embd) - n_new * n_embd**2,
                "The projection of the merged heads is missing: C C for each new token.",
            ),
            Mistake(
                lambda n_new, n_cached, n_embd: block_multiplications(n_new, n_cached, n_embd) - 2 * n_new * n_embd**2,
                "Queries, keys and values are three products of C C. Only one of them is counted.",
            ),
            Mistake(
                lambda n_new, n_cached, n_embd: block_multiplications(n_new, n_cached, n_embd) - 4 * n_new * n_embd**2,
                "The MLP has two products, up and down. Only one of them is counted.",
            ),
            Mistake(
                lambda n_new, n_cached, n_embd: 12 * n_new * n_embd**2 + 2 * n_new * n_cached * n_embd,
                "The new tokens meet only the cache. They also meet themselves and each other.",
            ),
        ),
    ),
    Exercise(
        name="extend_cache",
        lesson=8,
        task="Append new keys and values (H, T, D) to those of the layer, store both in the cache, and return them.",
        solution=extend_cache,
        inputs=_cache_inputs,
        changes=(0,),
        hints=(
            "The cache is a dict. At first it has nothing for the layer: `if layer in cache`.",
            "np.concatenate([old, new], axis=...): which axis of (H, T, D) counts the tokens?",
            "Store the longer ones, cache[layer] = (k, v), and return them.",
        ),
        mistakes=(
            Mistake(
                _unasked,
                "It raises a KeyError for a layer that the cache does not have yet. Ask first: `if layer in cache`.",
            ),
            Mistake(_replace, "The old keys and values are lost. Put the new ones behind them."),
            Mistake(
                lambda cache, layer, k, v: _extend(cache, layer, k, v, store=False),
                "Nothing is stored, so the next token finds what was there before. Write cache[layer] = (k, v).",
            ),
            Mistake(_store_new, "Only the new keys and values are stored. Store the longer ones."),
            Mistake(
                lambda cache, layer, k, v: _extend(cache, layer, k, v, axis=0),
                "They are joined along the heads. The tokens are axis 1 of (H, T, D).",
            ),
            Mistake(
                lambda cache, layer, k, v: _extend(cache, layer, k, v, axis=-1),
                "They are joined along the numbers of a head. The tokens are axis 1 of (H, T, D).",
            ),
            Mistake(
                lambda cache, layer, k, v: _extend(cache, layer, k, v, new_first=True),
                "The new tokens stand before the old ones. They come last.",
            ),
            Mistake(
                lambda cache, layer, k, v: _extend(cache, layer, k, v, swap=True),
                "Values and keys are exchanged in what is returned. Return k, v.",
            ),
            Mistake(
                lambda cache, layer, k, v: _extend(cache, layer, k, v, keep_old=True),
                "The cache never grows: the longer keys and values are returned, and the old ones stay stored.",
            ),
            Mistake(_one_place, "Everything is stored at 0. Each layer has its own keys and values: cache[layer]."),
        ),
    ),
    Exercise(
        name="cache_bytes",
        lesson=8,
        task="Count the bytes of a cache: keys and values of every token in every block.",
        solution=cache_bytes,
        inputs=lambda rng: [(1, 12, 768, 4), (1024, 12, 768, 2), (40, 5, 128, 4), (3, 2, 10, 1)],
        hints=(
            "For one token and one block, how many numbers are kept? Keys and values, each n_embd wide.",
            "Times the blocks, times the tokens, times the bytes of a number.",
        ),
        mistakes=(
            Mistake(
                lambda n_tokens, n_layer, n_embd, size: n_layer * n_tokens * n_embd * size,
                "Keys and values are both kept: twice as much.",
            ),
            Mistake(
                lambda n_tokens, n_layer, n_embd, size: 3 * n_layer * n_tokens * n_embd * size,
                "Queries are counted as well. They are used once and never kept.",
            ),
            Mistake(
                lambda n_tokens, n_layer, n_embd, size: 2 * n_tokens * n_embd * size,
                "The blocks are missing: each has keys and values of its own.",
            ),
            Mistake(
                lambda n_tokens, n_layer, n_embd, size: 2 * n_layer * n_tokens * n_embd,
                "These are numbers, not bytes. Multiply by the bytes of a number.",
            ),
            Mistake(
                lambda n_tokens, n_layer, n_embd, size: 16 * n_layer * n_tokens * n_embd * size,
                "These are bits. A number's size is given in bytes already.",
            ),
            Mistake(
                lambda n_tokens, n_layer, n_embd, size: 2 * n_layer * n_tokens**2 * n_embd * size,
                "The tokens are squared. Scores grow so, but they are not kept: the cache grows in proportion to the tokens.",
            ),
            Mistake(
                lambda n_tokens, n_layer, n_embd, size: 2 * n_layer * n_embd * size,
                "This is one token's share. Multiply by the tokens.",
            ),
        ),
    ),
    Exercise(
        name="generate",
        lesson=8,
        task="Return n new ids after `ids`, greedily, with a cache: each token goes through the model once.",
        solution=generate,
        inputs=_generate_inputs,
        keep=True,
        hints=(
            "Start with an empty cache, {}. The first call reads all ids; every later one only the newest.",
            "gpt2(unseen, weights, n_layer, n_head, cache) fills the cache and returns logits (T, V): the last row counts.",
            "pick(logits[-1]) is the new token. Append it to the result; it is the only unseen token of the next step.",
        ),
        mistakes=(
            Mistake(
                lambda ids, n, w, n_layer, n_head: _generate(ids, n, w, n_layer, n_head, cached=False),
                "After the first token the text before it is forgotten. Hand the same cache to every call of gpt2.",
            ),
            Mistake(
                lambda ids, n, w, n_layer, n_head: _generate(ids, n, w, n_layer, n_head, again=True),
                "The cache already holds the old tokens, and they are read again. Give gpt2 only the newest token.",
            ),
            Mistake(
                lambda ids, n, w, n_layer, n_head: _generate(ids, n, w, n_layer, n_head, row=0),
                "The logits of the first token are used. The next token follows the last one: logits[-1].",
            ),
            Mistake(
                lambda ids, n, w, n_layer, n_head: _generate(ids, n, w, n_layer, n_head, grow=False),
                "The prompt is read again at every step. After a step, the new token is the only unseen one.",
            ),
            Mistake(
                lambda ids, n, w, n_layer, n_head: _generate(ids, n, w, n_layer, n_head, cached=False, grow=False),
                "The same token comes every time: the new token is never given to the model.",
            ),
            Mistake(
                lambda ids, n, w, n_layer, n_head: [*ids, *generate(ids, n, w, n_layer, n_head)],
                "The prompt is part of the result. Return the new ids only.",
            ),
            Mistake(
                lambda ids, n, w, n_layer, n_head: generate(ids, n - 1, w, n_layer, n_head),
                "One token is missing: the logits after the prompt already give the first of the n new ones.",
            ),
            Mistake(
                lambda ids, n, w, n_layer, n_head: generate(ids, n + 1, w, n_layer, n_head),
                "There is one token too many. Return n.",
            ),
            Mistake(
                lambda ids, n, w, n_layer, n_head: generate(ids, n, w, n_layer, n_head)[::-1],
                "The tokens come in reverse order.",
            ),
        ),
    ),
]
