"""Lesson 11: GPT-2's relatives, told apart by who sees whom."""

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake
from glassgpt.course.exercises.lesson03_attention import softmax


def cross_attention(x, source, w_q, w_k, w_v):
    q, k, v = x @ w_q, source @ w_k, source @ w_v
    scores = q @ k.T / np.sqrt(q.shape[-1])  # (T, S): nothing is hidden
    return softmax(scores) @ v


def prefix_mask(n_tokens, n_prefix):
    i, j = np.arange(n_tokens)[:, None], np.arange(n_tokens)[None, :]
    return (j <= i) | (j < n_prefix)


def memory_mask(n_tokens, n_memory):
    i, j = np.arange(n_tokens)[:, None], np.arange(n_memory + n_tokens)[None, :]
    return j <= i + n_memory


def local_mask(n_tokens, block):
    i, j = np.arange(n_tokens)[:, None], np.arange(n_tokens)[None, :]
    return (j <= i) & (j // block == i // block)


def bits_per_character(nats_per_token, n_tokens, n_characters):
    return nats_per_token / np.log(2) * n_tokens / n_characters


def _grid(rows, columns=None):
    return np.arange(rows)[:, None], np.arange(rows if columns is None else columns)[None, :]


def _sources(rng):
    return [
        (rng.normal(size=(t, 6)), rng.normal(size=(s, 6)), *(rng.normal(size=(6, 4)) for _ in range(3)))
        for t, s in ((3, 5), (4, 2), (1, 3))
    ]


def _attend(q, k, v, scale=True, mask=None, axis=-1):
    scores = q @ k.T / (np.sqrt(q.shape[-1]) if scale else 1)
    if mask is not None:
        scores = np.where(mask(*scores.shape), scores, -np.inf)
    return softmax(scores) @ v if axis == -1 else softmax(scores.T).T @ v


def _lower(rows, columns):
    return np.tri(rows, columns, dtype=bool)


def _whole_blocks(n_tokens, block):
    end = n_tokens // block * block
    mask = local_mask(n_tokens, block)
    mask[end:] = False
    return mask


EXERCISES = [
    Exercise(
        name="cross_attention",
        lesson=11,
        task="Attention from one text to another: queries from x, keys and values from the source, no mask.",
        solution=cross_attention,
        inputs=_sources,
        hints=(
            "Three products: queries x @ w_q; keys and values from the source.",
            "The scores are (T, S), a row for each token of x. Divide them by the square root of the head's width.",
            "Nothing is masked: the source is complete before the first word is written. Softmax over the source, times v.",
        ),
        mistakes=(
            Mistake(
                lambda x, s, q, k, v: _attend(x @ q, x @ k, x @ v),
                "The source is not used: this is self-attention. Keys and values come from the source.",
            ),
            Mistake(
                lambda x, s, q, k, v: _attend(s @ q, x @ k, x @ v),
                "The two texts are exchanged. Queries come from x, keys and values from the source.",
            ),
            Mistake(
                lambda x, s, q, k, v: _attend(x @ q, s @ k, s @ v, scale=False),
                "The scale is missing: divide the scores by the square root of the head's width.",
            ),
            Mistake(
                lambda x, s, q, k, v: _attend(x @ q, s @ k, s @ v, mask=_lower),
                "A causal mask hides part of the source. The source is known from the start: no mask.",
            ),
            Mistake(
                lambda x, s, q, k, v: _attend(x @ q, s @ k, s @ v, axis=0),
                "The softmax goes over the tokens of x. Each token of x divides its attention over the source: the last axis.",
            ),
            Mistake(
                lambda x, s, q, k, v: (x @ q) @ (s @ k).T / np.sqrt(q.shape[1]) @ (s @ v),
                "The softmax is missing.",
            ),
            Mistake(
                lambda x, s, q, k, v: _attend(x @ q, s @ v, s @ k),
                "Keys and values are exchanged: scores are made with keys, sums with values.",
            ),
            Mistake(
                lambda x, s, q, k, v: softmax((x @ q) @ (s @ k).T / np.sqrt(q.shape[1])),
                "These are the weights. Multiply them by the values.",
            ),
            Mistake(
                lambda x, s, q, k, v: _attend(x @ q, s @ k, s @ v) + x[:, : v.shape[1]],
                "x is added. The sum with the stream happens outside of the attention.",
            ),
        ),
    ),
    Exercise(
        name="prefix_mask",
        lesson=11,
        task="A mask (T, T), True where row i sees column j: the first n_prefix tokens see each other, the rest is causal.",
        solution=prefix_mask,
        inputs=lambda rng: [(5, 2), (6, 4), (4, 1), (7, 3)],
        hints=(
            "Write i as a column and j as a row: np.arange(T)[:, None] and np.arange(T)[None, :].",
            "Two reasons to see a token: it is not later (j <= i), or it is in the prefix (j < n_prefix). Join them with |.",
        ),
        mistakes=(
            Mistake(lambda n, p: np.tri(n, dtype=bool), "This is the causal mask. The tokens of the prefix see each other both ways."),
            Mistake(lambda n, p: np.ones((n, n), bool), "Everything is visible: that is an encoder. After the prefix, nobody sees ahead."),
            Mistake(lambda n, p: ~prefix_mask(n, p), "True and False are exchanged. True means visible."),
            Mistake(lambda n, p: prefix_mask(n, p).T, "Rows and columns are exchanged. Row i is the token that looks."),
            Mistake(
                lambda n, p: np.tri(n, dtype=bool) | (_grid(n)[1] <= p),
                "The prefix is one token too long: it ends before column n_prefix.",
            ),
            Mistake(
                lambda n, p: np.broadcast_to(_grid(n)[1] < p, (n, n)).copy(),
                "Only the prefix is visible. The later tokens also see themselves and what is before them.",
            ),
            Mistake(
                lambda n, p: np.tri(n, dtype=bool) & (_grid(n)[1] < p),
                "Both conditions are demanded. One of them is enough: |, not &.",
            ),
            Mistake(
                lambda n, p: np.tri(n, k=-1, dtype=bool) | (_grid(n)[1] < p),
                "A token after the prefix does not see itself. j <= i includes it.",
            ),
            Mistake(
                lambda n_tokens, n_prefix: np.tri(n_tokens, dtype=bool) | (np.arange(n_tokens) < n_prefix)[:, None],
                "The prefix sees all of the text. It sees only itself: rows and columns below n_prefix.",
            ),
            Mistake(
                lambda n_tokens, n_prefix: np.outer(*[np.arange(n_tokens) < n_prefix] * 2),
                "Only the prefix is there. The rest is a causal mask.",
            ),
        ),
    ),
    Exercise(
        name="memory_mask",
        lesson=11,
        task="A mask (T, M + T) for a segment with a memory: all M columns of the memory, then causal.",
        solution=memory_mask,
        inputs=lambda rng: [(4, 3), (2, 5), (5, 0), (3, 3)],
        hints=(
            "Columns 0 to M - 1 are the memory. Token i of the segment stands in column M + i.",
            "Column j is visible if it is not later than M + i.",
        ),
        mistakes=(
            Mistake(lambda n, m: np.tri(n, m + n, dtype=bool), "The diagonal begins at column 0. Token i of the segment stands in column M + i."),
            Mistake(
                lambda n, m: np.tri(n, m + n, m),
                "The places are right, but these are decimal numbers. A mask is True or False: np.tri(..., dtype=bool).",
            ),
            Mistake(lambda n, m: np.tri(n, dtype=bool), "The columns of the memory are missing: the shape is (T, M + T)."),
            Mistake(lambda n, m: np.ones((n, m + n), bool), "The segment sees ahead. Only the memory is visible as a whole."),
            Mistake(
                lambda n, m: _grid(n, n + m)[1] < _grid(n, n + m)[0] + m,
                "A token does not see itself. Column M + i belongs to it: <=.",
            ),
            Mistake(lambda n, m: ~memory_mask(n, m), "True and False are exchanged. True means visible."),
            Mistake(
                lambda n, m: np.hstack([np.tri(n, dtype=bool), np.ones((n, m), bool)]),
                "The memory stands behind the segment. It comes first: it is older.",
            ),
            Mistake(
                lambda n, m: np.hstack([np.zeros((n, m), bool), np.tri(n, dtype=bool)]),
                "The memory is hidden. All of it is visible.",
            ),
            Mistake(
                lambda n, m: memory_mask(n, m) & (_grid(n, n + m)[1] > _grid(n, n + m)[0]),
                "The memory shrinks by one for each row. Every token of the segment sees all of it.",
            ),
        ),
    ),
    Exercise(
        name="local_mask",
        lesson=11,
        task="A mask (T, T): the text is cut into blocks, and a token sees its own block up to itself.",
        solution=local_mask,
        inputs=lambda rng: [(6, 3), (7, 2), (8, 5), (4, 4)],
        hints=(
            "The number of a token's block is i // block.",
            "Two conditions at once: not later, j <= i, and the same block. Join them with &.",
        ),
        mistakes=(
            Mistake(lambda n, b: np.tri(n, dtype=bool), "This is the causal mask. Tokens of earlier blocks are hidden, too."),
            Mistake(
                lambda n, b: np.tri(n, dtype=bool) & (_grid(n)[0] - _grid(n)[1] < b),
                "This is a window that moves with the token. The blocks stand still: compare i // block with j // block.",
            ),
            Mistake(
                lambda n, b: _grid(n)[0] // b == _grid(n)[1] // b,
                "A token sees the rest of its block. It must not see ahead: j <= i.",
            ),
            Mistake(
                lambda n, b: np.tri(n, dtype=bool) | (_grid(n)[0] // b == _grid(n)[1] // b),
                "One condition is enough here. Both have to hold: &, not |.",
            ),
            Mistake(lambda n, b: ~local_mask(n, b), "True and False are exchanged. True means visible."),
            Mistake(lambda n, b: local_mask(n, b).T, "Rows and columns are exchanged. Row i is the token that looks."),
            Mistake(
                lambda n, b: np.tri(n, dtype=bool) & (_grid(n)[0] % b == _grid(n)[1] % b),
                "The remainder says the place within a block. The block's number is the whole part: //.",
            ),
            Mistake(
                lambda n, b: np.tri(n, k=-1, dtype=bool) & (_grid(n)[0] // b == _grid(n)[1] // b),
                "A token does not see itself: <=.",
            ),
            Mistake(
                _whole_blocks,
                "The last block is missing if it is shorter than the others.",
            ),
        ),
    ),
    Exercise(
        name="bits_per_character",
        lesson=11,
        task="Turn a loss in nats per token into bits per character, to compare models with other tokens.",
        solution=bits_per_character,
        inputs=lambda rng: [(3.2, 20, 90), (1.4, 90, 90), (4.0, 7, 40)],
        hints=(
            "The whole text costs nats_per_token * n_tokens, however it is cut.",
            "One bit is log(2) nats. Divide by np.log(2), and by the number of characters.",
        ),
        mistakes=(
            Mistake(
                lambda nats, t, c: nats * t / c,
                "These are nats per character. Divide by log(2) for bits.",
            ),
            Mistake(
                lambda nats, t, c: nats / np.log(2),
                "These are bits per token. A token has several characters: times the tokens, divided by the characters.",
            ),
            Mistake(
                lambda nats, t, c: nats / np.log(2) * c / t,
                "Tokens and characters are exchanged. The fewer tokens a character takes, the fewer bits.",
            ),
            Mistake(
                lambda nats, t, c: nats * np.log(2) * t / c,
                "It is multiplied by log(2). A bit is less than a nat, so there are more bits: divide.",
            ),
            Mistake(lambda nats, t, c: nats / np.log(2) * t, "These are the bits of the whole text. Divide by its characters."),
            Mistake(lambda nats, t, c: nats / np.log(2) / c, "The tokens are missing: the loss is a mean over them."),
            Mistake(lambda nats, t, c: nats / 2 * t / c, "A bit is log(2) nats, not 2."),
            Mistake(
                lambda nats, t, c: nats / np.log(10) * t / c,
                "This is base 10. A bit is base 2: divide by log(2).",
            ),
        ),
    ),
]
