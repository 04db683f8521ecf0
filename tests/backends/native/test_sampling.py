"""The native engine's sampler draws what generate/sampling/sampler.py draws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from glassgpt.backends.native import is_available
from glassgpt.backends.native.backend import NativeBackend
from glassgpt.backends.native.library import kernels
from glassgpt.backends.native.weights import Weights
from glassgpt.config import Config
from glassgpt.errors import UserError
from glassgpt.generate.sampling.constraints import unpack_masks
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.sampler import LogitEdits, draw_tokens, stack_metadata
from glassgpt.weights import Checkpoint

pytestmark = pytest.mark.skipif(not is_available(), reason="the native engine was not built")


def backend_of(threads: int = 2, kernel: str = "") -> NativeBackend:
    """Any model will do: its weights have nothing to do with drawing."""
    config = Config(vocab_size=5, n_positions=4, n_embd=4, n_layer=1, n_head=1)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in config.shapes().items()}
    return NativeBackend(Weights(Checkpoint(config, tensors), threads=threads, kernels=kernel))


FILTERS = {
    "top_k": (None, 1, 2, 40, 700, 10**6),
    "top_p": (None, 0.05, 0.9, 1.0),
    "min_p": (None, 0.0, 0.05, 1.0),
    "typical_p": (None, 0.2, 0.95, 1.0),
    "temperature": (0.0, 0.1, 0.8, 1.0, 3.0),
    "logprobs": (None, 0, 3),
}


def random_settings(draw: np.random.Generator) -> SamplingParams:
    """Each filter is off in half of the rows, whatever else it could be."""
    chosen = {
        name: values[draw.integers(len(values))] if draw.random() < 0.5 else values[0]
        for name, values in FILTERS.items()
    }
    chosen["temperature"] = FILTERS["temperature"][draw.integers(5)]
    return SamplingParams(**chosen)


def random_logits(draw: np.random.Generator, rows: int, vocab_size: int) -> np.ndarray:
    """Smooth ones, ones with many ties, ones with most tokens banned; in wider rows, as the engine has."""
    wide = np.full((rows, vocab_size + 13), 1e9, np.float32)
    logits = wide[:, :vocab_size]
    logits[:] = draw.normal(0, draw.uniform(0.5, 5, (rows, 1)), (rows, vocab_size))
    for row in logits[::3]:
        row[:] = np.round(row)
    for row in logits[1::3]:
        row[draw.random(vocab_size) < 0.98] = -np.inf
        row[draw.integers(vocab_size)] = 1.0
    return logits


def random_edits(draw: np.random.Generator, rows: int, vocab_size: int) -> LogitEdits:
    ids = np.stack([draw.choice(vocab_size, 4, replace=False) for _ in range(rows)])
    scale = draw.choice(np.array([1, 1.3, 0.5], np.float32), (rows, 4))
    shift = draw.choice(np.array([0, -2.5, 4, -np.inf], np.float32), (rows, 4))
    return LogitEdits(ids, scale, shift)


def compare(rows: int, vocab_size: int, seed: int, backends: list[NativeBackend]) -> None:
    draw = np.random.default_rng(seed)
    logits = random_logits(draw, rows, vocab_size)
    params = stack_metadata([random_settings(draw) for _ in range(rows)], vocab_size, lambda x: x)
    uniform = draw.random(rows)
    edits = random_edits(draw, rows, vocab_size) if seed % 2 else None
    bits = mask = None
    if seed % 3 == 0:
        bits = draw.integers(-(2**31), 2**31, (rows, vocab_size // 32 + 1)).astype(np.int32)
        mask = unpack_masks(bits, vocab_size)
    wanted = draw_tokens(logits, params, uniform, edits, mask)
    for backend in backends:
        tokens, report = backend.draw_tokens(logits, params, uniform, edits, bits)
        drawn = wanted.report[:, 0] >= 0  # the others had no token that could be drawn
        np.testing.assert_array_equal(report[:, 0], wanted.report[:, 0])
        np.testing.assert_array_equal(tokens[drawn], wanted.tokens[drawn])
        if params.alternatives is None:
            continue
        listed = slice(2, 2 + params.alternatives)
        known = np.isfinite(logits).sum(axis=1) > params.alternatives  # banned ones have no order
        np.testing.assert_array_equal(report[drawn & known, listed], wanted.report[drawn & known, listed])
        # float32 exponentials summed in another order: a few units in their last place.
        np.testing.assert_allclose(report[drawn & known, 1:], wanted.report[drawn & known, 1:], atol=3e-6)


def test_it_draws_what_numpy_draws() -> None:
    backends = [backend_of(kernel=kernel) for kernel in kernels()]
    for seed, vocab_size in itertools.product(range(6), (4, 31, 64, 300)):
        compare(7, vocab_size, seed, backends)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_it_draws_what_numpy_draws_from_a_whole_vocabulary(seed: int) -> None:
    compare(64, 50_257, seed, [backend_of(threads=1), backend_of(threads=3)])


@pytest.mark.slow
def test_a_draw_from_far_down() -> None:
    """Uniform logits and draws near 1: the best few do not decide, with or without a filter."""
    logits = np.random.default_rng(3).normal(0, 0.01, (5, 50_257)).astype(np.float32)
    settings = [SamplingParams(top_k=None, top_p=p) for p in (None, 0.999, 0.5)]
    settings += [SamplingParams(top_k=None, min_p=0.5), SamplingParams(top_k=None, typical_p=0.5)]
    params = stack_metadata(settings, 50_257, lambda x: x)
    for u in (0.0, 0.3, 0.999, 1 - 2**-53):
        uniform = np.full(5, u)
        wanted = draw_tokens(logits, params, uniform).tokens
        np.testing.assert_array_equal(backend_of().draw_tokens(logits, params, uniform)[0], wanted)


def test_nothing_is_drawn_where_no_logit_is_finite() -> None:
    logits = np.zeros((4, 70), np.float32)
    logits[0, 69] = np.nan
    logits[1, 3] = np.inf
    logits[2] = -np.inf
    for temperature in (0.0, 1.0):
        params = stack_metadata([SamplingParams(temperature=temperature, logprobs=2)] * 4, 70, lambda x: x)
        _, report = backend_of().draw_tokens(logits, params, np.full(4, 0.5))
        assert (report[:, 0] < 0).tolist() == [True, True, True, False]


def test_what_does_not_exist_is_refused() -> None:
    logits, uniform = np.zeros((1, 70), np.float32), np.zeros(1)
    params = stack_metadata([SamplingParams()], 70, lambda x: x)
    one = np.ones((1, 1), np.float32)
    for edits, allowed in ((LogitEdits(np.array([[70]]), one, one), None), (None, np.ones((1, 2), np.int32))):
        with pytest.raises(UserError, match="the native engine: draw"):
            backend_of().draw_tokens(logits, params, uniform, edits, allowed)
    with pytest.raises(UserError, match="the native engine: draw"):
        backend_of().draw_tokens(logits, params._replace(top_k=np.array([[71]])), uniform)
