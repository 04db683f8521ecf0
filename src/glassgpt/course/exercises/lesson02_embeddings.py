"""Lesson 2: a vector for each token, and one for each place."""

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake
from glassgpt.course.models import weights


def one_hot(ids, n):
    rows = np.zeros((len(ids), n))  # (T, n)
    rows[np.arange(len(ids)), ids] = 1
    return rows


def embed(ids, wte, wpe, start=0):
    return wte[ids] + wpe[start : start + len(ids)]  # (T, C)


def cosine(a, b):
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def nearest(vectors, row, k):
    lengths = np.sqrt((vectors * vectors).sum(-1))  # (V,)
    likeness = vectors @ vectors[row] / (lengths * lengths[row])  # (V,)
    likeness[row] = -np.inf  # not itself
    return [int(i) for i in np.argsort(-likeness)[:k]]


def dot_table(vectors):
    return vectors @ vectors.T  # (T, T)


def embed_inputs(rng):
    tables = weights()
    made = [
        (ids, rng.normal(size=(7, 4)), rng.normal(size=(9, 4)), *rest)
        for ids, rest in ((np.array([1, 6, 1]), ()), ([0], (8,)), (np.array([3, 3]), (2,)), ([5, 4, 3, 2], (4,)))
    ]
    return [*made, (np.array([464, 1379, 12]), tables["wte.weight"], tables["wpe.weight"])]


def pair_inputs(rng):
    made = [(rng.normal(size=n) * a, rng.normal(size=n) * b) for n, a, b in ((3, 1, 1), (8, 5, 0.1), (2, 1, 9))]
    table = weights()["wte.weight"]
    return [*made, (np.array([1.0, 2.0]), np.array([-2.0, -4.0])), (table[300], table[301])]


def table_inputs(rng):
    return [(rng.normal(size=(9, 4)) * rng.uniform(0.2, 5, size=(9, 1)), row, k) for row, k in ((0, 3), (8, 1), (4, 5))]


def by(vectors, row, k, measure, best=max, own=False):
    rest = [i for i in range(len(vectors)) if own or i != row]
    order = sorted(rest, key=lambda i: measure(vectors[i], vectors[row]), reverse=best is max)
    return order[:k]


def last_rows(ids, wte, wpe, start=0):
    return wte[ids] + wpe[len(wpe) - len(ids) :]


def whole_rows(ids, n):
    rows = np.zeros((len(ids), n))
    rows[ids] = 1
    return rows


def all_columns(ids, n):
    rows = np.zeros((len(ids), n))
    rows[:, ids] = 1
    return rows


EXERCISES = [
    Exercise(
        "one_hot", 2, "Return an array (T, n) with a row for each id: zeros, and a 1 in the column of the id.",
        one_hot, lambda rng: [([2, 0, 1], 4), ([0], 1), ([3, 3], 5), ([1, 4, 2, 2], 6)],
        (
            Mistake(lambda ids, n: one_hot(ids, n).T, "Rows and columns are exchanged: each id has a row."),
            Mistake(lambda ids, n: one_hot(ids, n).astype(int).sum(0), "This is one row that counts the ids. Make a row for each id."),
            Mistake(lambda ids, n: one_hot(ids, n).sum(0), "This is one row for all ids. Make a row for each id."),
            Mistake(lambda ids, n: np.eye(n)[: len(ids)], "The ones are on the diagonal, whatever the ids are. Take row `id` of the identity matrix for each id."),
            Mistake(lambda ids, n: one_hot([i - 1 for i in ids], n), "Each 1 is one column too far left: counting begins at 0."),
            Mistake(lambda ids, n: one_hot(ids, n) * np.array(ids)[:, None], "The number in the column is the id. It has to be 1."),
            Mistake(lambda ids, n: 1 - one_hot(ids, n), "Zeros and ones are exchanged."),
            Mistake(lambda ids, n: one_hot(ids, n) == 1, "These are True and False. Use np.zeros, which has decimal numbers."),
            Mistake(lambda ids, n: np.zeros((len(ids), n)), "Every number is 0. Set the 1 of each row."),
            Mistake(whole_rows, "Whole rows are set to 1. Each row has a single 1: rows[t, ids[t]] = 1."),
            Mistake(all_columns, "Every row has the ones of all ids. Each row has a single 1: rows[t, ids[t]] = 1."),
        ),
        ("np.zeros((len(ids), n)) has the shape.", "A loop over enumerate(ids) can set rows[t, id] = 1."),
    ),
    Exercise(
        "embed", 2, "Add the token's row of wte and the position's row of wpe; the first position is `start`.",
        embed, embed_inputs,
        (
            Mistake(lambda ids, wte, wpe, start=0: wte[ids], "The positions are missing: add rows of wpe."),
            Mistake(lambda ids, wte, wpe, start=0: wpe[start : start + len(ids)], "The tokens are missing: add wte[ids]."),
            Mistake(lambda ids, wte, wpe, start=0: wte[ids] + wpe[: len(ids)], "`start` is ignored: the first row of wpe is the one at `start`."),
            Mistake(lambda ids, wte, wpe, start=0: wte[ids] + wpe[ids], "The rows of wpe are chosen by the token. Choose them by the place: start, start + 1 and so on."),
            Mistake(lambda ids, wte, wpe, start=0: wte[ids] + wpe[start], "All tokens get the same position. The one after the first has position start + 1."),
            Mistake(lambda ids, wte, wpe, start=0: wte[ids] * wpe[start : start + len(ids)], "The vectors are multiplied. Add them."),
            Mistake(lambda ids, wte, wpe, start=0: (wte[ids] + wpe[start : start + len(ids)]) / 2, "This is the mean of both. GPT-2 adds them and divides by nothing."),
            Mistake(lambda ids, wte, wpe, start=0: wte[ids] - wpe[start : start + len(ids)], "The positions are subtracted. Add them."),
            Mistake(last_rows, "These are the last positions of wpe. Begin at `start`."),
            Mistake(lambda ids, wte, wpe, start=0: np.concatenate([wte[ids], wpe[start : start + len(ids)]], -1), "The vectors are put side by side, which doubles their width. Add them."),
            Mistake(lambda ids, wte, wpe, start=0: (wte[ids] + wpe[start : start + len(ids)]).sum(0), "This is one vector for the whole text. Keep one for each token."),
            Mistake(lambda ids, wte, wpe, start=0: wte[ids] + wpe[start : start + len(ids)][::-1], "The positions run backwards."),
            Mistake(lambda ids, wte, wpe, start=0: wte[ids] + wpe[start : len(ids)], "The slice of wpe ends at len(ids). It has to end at start + len(ids)."),
        ),
        ("An array of ids as an index takes those rows: wte[ids].", "The positions are start to start + len(ids) - 1, a slice of wpe.", "wte[ids] + wpe[start : start + len(ids)]"),
        keep=True,
    ),
    Exercise(
        "cosine", 2, "Return the cosine of the angle between two vectors: their dot product, divided by both lengths.",
        cosine, pair_inputs,
        (
            Mistake(lambda a, b: float(a @ b), "This is the dot product, which grows with the lengths. Divide it by both."),
            Mistake(lambda a, b: float(a @ b / ((a @ a) * (b @ b))), "The lengths are squared: a @ a is the square of the length, take its root."),
            Mistake(lambda a, b: float(a @ b / np.sqrt(a @ a)), "It is divided by the length of a only. Divide by the length of b, too."),
            Mistake(lambda a, b: float(a @ b / np.sqrt(b @ b)), "It is divided by the length of b only. Divide by the length of a, too."),
            Mistake(lambda a, b: float(a @ b / (np.sqrt(a @ a) + np.sqrt(b @ b))), "It is divided by the sum of the lengths. Divide by their product."),
            Mistake(lambda a, b: float(a @ b / np.linalg.norm(a * b)), "It is divided by the length of a * b. Divide by the length of a and by the length of b."),
            Mistake(lambda a, b: float(a @ b / len(a)), "It is divided by the number of dimensions. Divide by the lengths of the vectors: sqrt(a @ a)."),
            Mistake(lambda a, b: float(np.sqrt(((a - b) ** 2).sum())), "This is the distance between the two points."),
            Mistake(lambda a, b: abs(cosine(a, b)), "The sign is lost. Opposite vectors have the cosine -1."),
            Mistake(lambda a, b: 1 - cosine(a, b), "This is the cosine distance: 1 minus the cosine."),
            Mistake(lambda a, b: float(np.arccos(np.clip(cosine(a, b), -1, 1))), "This is the angle. Its cosine is asked for."),
            Mistake(lambda a, b: a * b / np.sqrt((a @ a) * (b @ b)), "a * b multiplies number by number. The dot product adds them up: a @ b."),
            Mistake(lambda a, b: float(a @ b / np.sqrt(a @ a) * np.sqrt(b @ b)), "It is divided by one length and multiplied by the other. Put the product of both lengths in brackets."),
        ),
        ("a @ b is the dot product.", "The length of a is np.sqrt(a @ a), or np.linalg.norm(a)."),
    ),
    Exercise(
        "nearest", 2, "Return the k rows that have the largest cosine with one row, the best first, without the row itself.",
        nearest, table_inputs,
        (
            Mistake(lambda vectors, row, k: by(vectors, row, k, cosine, own=True), "The row itself is among them: leave it out, its cosine with itself is always 1."),
            Mistake(lambda vectors, row, k: by(vectors, row, k, cosine, best=min), "These are the least similar rows: sort from large to small."),
            Mistake(lambda vectors, row, k: by(vectors, row, k, lambda a, b: a @ b), "This sorts by the dot product, where long vectors win. Divide by the lengths."),
            Mistake(lambda vectors, row, k: by(vectors, row, k, lambda a, b: a @ b, own=True), "This sorts by the dot product, where long vectors win, and the row itself is among them."),
            Mistake(lambda vectors, row, k: by(vectors, row, k, lambda a, b: a @ b, own=True)[::-1], "This sorts by the dot product, where long vectors win, the row itself is among them, and the best is last."),
            Mistake(lambda vectors, row, k: by(vectors, row, k, lambda a, b: ((a - b) ** 2).sum(), best=min), "This sorts by distance. The cosine only looks at the direction."),
            Mistake(lambda vectors, row, k: by(vectors, row, k, cosine)[::-1], "The order is turned around: the best first."),
            Mistake(lambda vectors, row, k: by(vectors, row, k + 1, cosine), "These are k + 1 rows."),
            Mistake(lambda vectors, row, k: by(vectors, row, k - 1, cosine), "These are k - 1 rows."),
            Mistake(lambda vectors, row, k: sorted(by(vectors, row, k, cosine)), "They are sorted by their number. The best comes first."),
            Mistake(lambda vectors, row, k: [cosine(vectors[i], vectors[row]) for i in by(vectors, row, k, cosine)], "These are the cosines. Return the numbers of the rows."),
            Mistake(lambda vectors, row, k: by(vectors, row, k, cosine, own=True)[::-1], "The row itself is among them, and the best is last."),
            Mistake(lambda vectors, row, k: by(vectors, row, k + 1, lambda a, b: a @ b, own=True)[1:], "This sorts by the dot product, where long vectors win, and leaves out the first. Divide by the lengths."),
        ),
        ("np.argsort sorts from small to large; a minus turns that around.", "Sort all, take away the row itself, then the first k."),
    ),
    Exercise(
        "dot_table", 2, "Return the dot product of every vector with every other: (T, C) becomes (T, T).",
        dot_table, lambda rng: [(rng.normal(size=shape),) for shape in ((3, 2), (4, 4), (1, 5), (5, 3))],
        (
            Mistake(lambda x: x.T @ x, "This compares columns: it is (C, C). Each row is a vector, so the second factor is turned: x @ x.T."),
            Mistake(lambda x: (x * x).sum(-1), "Each vector is only compared with itself."),
            Mistake(lambda x: np.diag((x * x).sum(-1)), "Each vector is only compared with itself."),
            Mistake(lambda x: x * x, "This multiplies each number with itself. A dot product adds up along a row."),
            Mistake(lambda x: x @ x.T / np.sqrt(x.shape[-1]), "This is divided by the root of the width. That comes in lesson 3; here it is the plain dot product."),
            Mistake(lambda x: x @ x.T / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(x, axis=1)), "These are the cosines. Do not divide by the lengths."),
            Mistake(lambda x: ((x[:, None] - x[None]) ** 2).sum(-1), "These are squared distances."),
            Mistake(lambda x: x[:, None] * x[None], "The products are not added up: sum along the last axis."),
            Mistake(lambda x: np.tril(x @ x.T), "The half above the diagonal is missing."),
        ),
        ("x @ y multiplies rows of x with columns of y.", "x.T has the rows of x as columns."),
    ),
]
