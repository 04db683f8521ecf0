"""How many multiplications a function does in its products of matrices: counted, not timed.

The arrays among its arguments are lent as `CountingArray`s. numpy hands every operation on one of them to
the two methods below, which count the products of matrices and pass everything else on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from glassgpt.errors import SettingError

_counter: list[int] = []  # a number for each running `multiplications`


class CountingArray(np.ndarray):
    """An array that adds the multiplications of its matrix products to the counter."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        if ufunc is np.matmul:
            count(matmul_size(*inputs))
        plain_out = plain(settings.pop("out", None))
        if plain_out is not None:
            settings["out"] = plain_out
        return counting(getattr(ufunc, method)(*plain(inputs), **plain(settings)))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        size = SIZES.get(function)
        if size is not None:
            count(size(*args, **kwargs))
        return counting(function(*plain(args), **plain(kwargs)))

    def dot(self, b: Any, out: Any = None) -> Any:  # numpy asks nobody for the method
        return np.dot(self, b, out)


def multiplications(function: Callable[..., Any], *arguments: Any) -> int:
    """Call the function and count the multiplications of its matrix products: `@`, matmul, dot, einsum,
    tensordot, inner. A dict among the arguments, such as a KV cache, changes as the function changes it."""
    if not callable(function):
        raise SettingError(
            "multiplications needs a function and its arguments: multiplications(block, x, ...)"
        )
    _counter.append(0)
    try:
        with lent(arguments) as counted:
            function(*counted)
        return _counter[-1]
    finally:
        _counter.pop()


@contextmanager
def lent(arguments: tuple[Any, ...]) -> Iterator[list[Any]]:
    """The arguments with counting arrays. Dicts stay the same objects, and have plain arrays again later."""
    dicts = [argument for argument in arguments if type(argument) is dict]
    try:
        for own in dicts:
            own.update({key: counting(value) for key, value in own.items()})
        yield [argument if type(argument) is dict else counting(argument) for argument in arguments]
    finally:
        for own in dicts:
            own.update({key: plain(value) for key, value in own.items()})


def count(n: int) -> None:
    if _counter:
        _counter[-1] += n


def counting(value: Any) -> Any:
    if type(value) is np.ndarray:
        return value.view(CountingArray)
    if type(value) in (list, tuple):
        return type(value)(map(counting, value))
    return value


def plain(value: Any) -> Any:
    if isinstance(value, CountingArray):
        return value.view(np.ndarray)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    return value


def matmul_size(a: Any, b: Any) -> int:
    """(..., n, m) @ (..., m, k): n m k for each matrix of the batch."""
    one, other = np.shape(a), np.shape(b)
    batch = math.prod(np.broadcast_shapes(one[:-2], other[:-2]))
    return int(batch * math.prod(one[-2:]) * (other[-1] if len(other) > 1 else 1))


def dot_size(a: Any, b: Any, out: Any = None) -> int:
    """Every row of one with every column of the other."""
    one, other = np.shape(a), np.shape(b)
    inner: int = other[-2] if len(other) > 1 else other[-1] if other else 1
    return int(math.prod(one) * math.prod(other) // inner)


def inner_size(a: Any, b: Any) -> int:
    inner: int = np.shape(b)[-1]
    return int(math.prod(np.shape(a)) * math.prod(np.shape(b)) // inner)


def tensordot_size(a: Any, b: Any, axes: Any = 2) -> int:
    shape = np.shape(a)
    summed = range(len(shape) - axes, len(shape)) if isinstance(axes, int) else np.atleast_1d(axes[0])
    inner: int = math.prod(shape[i] for i in summed)
    return int(math.prod(shape) * math.prod(np.shape(b)) // inner)


def einsum_size(subscripts: str, *operands: Any, **_: Any) -> int:
    """Every combination of the indices once for each `times`: two operands have one, three have two."""
    sizes: dict[str, int] = {}
    for letters, operand in zip(subscripts.replace(" ", "").split("->")[0].split(","), operands, strict=True):
        shape = np.shape(operand)
        before, dots, behind = letters.partition("...")
        named = [*zip(before, shape, strict=False), *zip(reversed(behind), reversed(shape), strict=False)]
        sizes.update(named)
        for place, size in enumerate(reversed(shape[len(before) : len(shape) - len(behind)] if dots else ())):
            sizes[f"...{place}"] = max(size, sizes.get(f"...{place}", 1))
    return (len(operands) - 1) * math.prod(sizes.values())


SIZES: dict[Any, Callable[..., int]] = {
    np.dot: dot_size,
    np.inner: inner_size,
    np.tensordot: tensordot_size,
    np.einsum: einsum_size,
}
