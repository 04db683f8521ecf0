"""`course.multiplications` counts the products of matrices, however they are written."""

from __future__ import annotations

import numpy as np
import pytest

from glassgpt import course
from glassgpt.course.exercises.lesson08_cache import block_multiplications
from glassgpt.errors import SettingError

A, B, W = np.ones((2, 3, 4)), np.ones((2, 4, 5)), np.ones((4, 6))

WAYS = {
    "@": (lambda a, b: a @ b, A, B, 2 * 3 * 4 * 5),
    "@ with one matrix": (lambda a, b: a @ b, A, W, 2 * 3 * 4 * 6),
    "matmul into an array": (lambda a, b: np.matmul(a, b, out=np.empty((2, 3, 5))), A, B, 2 * 3 * 4 * 5),
    "dot": (np.dot, A, W, 2 * 3 * 4 * 6),
    "the method dot": (lambda a, b: a.dot(b), A, W, 2 * 3 * 4 * 6),
    "two vectors": (np.dot, np.ones(7), np.ones(7), 7),
    "inner": (lambda a, b: np.inner(a, b.T), A, W, 2 * 3 * 4 * 6),
    "tensordot": (lambda a, b: np.tensordot(a, b, axes=([2], [0])), A, W, 2 * 3 * 4 * 6),
    "tensordot, one axis": (lambda a, b: np.tensordot(a, b, axes=1), A, W, 2 * 3 * 4 * 6),
    "einsum": (lambda a, b: np.einsum("htd,hdl->htl", a, b), A, B, 2 * 3 * 4 * 5),
    "einsum with dots": (lambda a, b: np.einsum("...d,de->...e", a, b), A, W, 2 * 3 * 4 * 6),
    "a part of it": (lambda a, b: a[0, :1] @ b[0], A, B, 4 * 5),
    "after other steps": (lambda a, b: np.where(a > 0, a, -1) @ np.split(b, 5, -1)[0], A, B, 2 * 3 * 4),
    "no product": (lambda a, b: (a * 2).sum() + b.mean(), A, B, 0),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_write_a_product_is_counted(way):
    function, a, b, expected = WAYS[way]
    assert course.multiplications(function, a, b) == expected


@pytest.mark.parametrize(("new", "cached"), [(6, 0), (1, 39), (3, 4)])
def test_the_count_of_a_block_is_that_of_the_formula(new, cached):
    from glassgpt.course.exercises.lesson05_block import block

    weights, (_, n_head) = course.weights(), course.shape()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(cached + new, 128)).astype(np.float32)
    cache = {}
    if cached:
        block(x[:cached], weights, 0, n_head, cache)
    counted = course.multiplications(block, x[cached:], weights, 0, n_head, cache)
    assert counted == block_multiplications(new, cached, 128)
    k, v = cache[0]
    assert type(k) is type(v) is np.ndarray
    assert k.shape[1] == cached + new
    assert all(type(values) is np.ndarray for values in weights.values())


def test_a_cache_saves_work_and_the_result_stays_the_same():
    from glassgpt.course.exercises.lesson06_stack import gpt2

    ids = course.model().encode("The old house stood at the end")
    weights, (n_layer, n_head) = course.weights(), course.shape()
    cache = {}
    gpt2(ids[:-1], weights, n_layer, n_head, cache)
    one = course.multiplications(gpt2, ids[-1:], weights, n_layer, n_head, dict(cache))
    whole = course.multiplications(gpt2, ids, weights, n_layer, n_head)
    assert whole == len(ids) * one
    last = gpt2(ids[-1:], weights, n_layer, n_head, cache)[-1]
    np.testing.assert_allclose(last, gpt2(ids, weights, n_layer, n_head)[-1], atol=1e-4)


def test_counts_inside_counts_and_errors():
    assert course.multiplications(lambda a, b: course.multiplications(np.matmul, a, b), A, B) == 0
    weights = {"w": W}
    with pytest.raises(ZeroDivisionError):
        course.multiplications(lambda w: 1 / 0, weights)
    assert type(weights["w"]) is np.ndarray
    with pytest.raises(SettingError, match="a function and its arguments"):
        course.multiplications(3)
