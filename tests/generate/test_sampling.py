"""The sampler against the textbook, against itself on torch, and at its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.rng import UniformRNG
from glassgpt.generate.sampling.sampler import (
    NOTHING,
    LogitEdits,
    apply_edits,
    draw_tokens,
    rank_tokens,
    stack_metadata,
)
from tests.generate import naive

# Away from a threshold by more than float64 rounding of at most a few hundred terms.
NEAR = 1e-12


def tokens_of(logits, settings, uniform, to=lambda x: x, edits=None):
    """The tokens drawn for the rows of `logits`, each with its own settings."""
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    uniform = to(np.asarray(uniform, np.float64))
    return np.asarray(
        draw_tokens(to(logits), stack_metadata(settings, logits.shape[1], to), uniform, edits).tokens
    )


def to_torch(values):
    return torch.from_numpy(np.ascontiguousarray(values))


def optional(strategy):
    return st.none() | strategy


probability = st.sampled_from([0.01, 0.1, 0.5, 0.9, 0.999, 1.0]) | st.floats(0.001, 1)
drawing = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.1, 0.8, 1.0, 2.5, 50.0]),
    top_k=optional(st.integers(1, 40)),
    top_p=optional(probability),
    min_p=optional(st.sampled_from([0.0, 1.0]) | st.floats(0, 1)),
    typical_p=optional(probability),
)
# Sixteenths: exact in float32, and with many ties.
logit = st.integers(-160, 160).map(lambda n: n / 16) | st.just(-math.inf)
rows_of_logits = st.lists(logit, min_size=2, max_size=30).filter(lambda row: max(row) > -math.inf)
unit = st.floats(0, 1, exclude_max=True)


@given(rows_of_logits, drawing, unit)
@hypothesis_settings(max_examples=400, deadline=None)
def test_one_row_draws_what_the_textbook_says(row, settings, u):
    expected, slack = naive.distribution(row, settings)
    token, boundary = naive.draw(expected, u)
    assume(slack > NEAR)
    assume(boundary > NEAR)
    assert tokens_of(row, [settings], [u]) == [token]
    assert tokens_of(row, [settings], [u], to_torch) == [token]


@given(st.data(), st.integers(2, 12), st.integers(1, 6))
@hypothesis_settings(max_examples=100, deadline=None)
def test_a_row_does_not_depend_on_its_neighbours(data, width, rows):
    row = st.lists(logit, min_size=width, max_size=width).filter(lambda row: max(row) > -math.inf)
    table = np.array([data.draw(row) for _ in range(rows)], np.float32)
    settings = [data.draw(drawing) for _ in range(rows)]
    u = [data.draw(unit) for _ in range(rows)]
    alone = [int(tokens_of(table[i], [settings[i]], [u[i]])[0]) for i in range(rows)]
    assert tokens_of(table, settings, u).tolist() == alone
    assert tokens_of(table, settings, u, to_torch).tolist() == alone


@pytest.mark.parametrize(
    "settings",
    [
        SamplingParams(temperature=1, top_k=None),
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.3, top_k=None, top_p=0.8),
        SamplingParams(temperature=1, top_k=None, typical_p=0.6),
        SamplingParams(temperature=1, top_k=8, min_p=0.2, top_p=0.95),
    ],
    ids=["plain", "top-k", "top-p", "typical", "all"],
)
def test_draws_have_the_right_distribution(settings):
    """Chi-square on a fixed seed: a wrong distribution fails, a right one passes for ever."""
    n = 20_000
    logits = np.random.default_rng(5).normal(0, 1.5, 12).astype(np.float32)
    expected = dict(naive.distribution(logits.tolist(), settings)[0])
    u = UniformRNG(seed=11, sample=0).window(0, n)
    drawn = np.bincount(tokens_of(np.tile(logits, (n, 1)), [settings] * n, u), minlength=12)
    assert {i for i in range(12) if drawn[i]} == set(expected)
    chi2 = sum((drawn[i] - n * p) ** 2 / (n * p) for i, p in expected.items())
    # The mean of chi-square is its degrees of freedom, its variance twice that; five deviations are ~1e-6.
    freedom = len(expected) - 1
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    "given", [{}, {"top_p": 0.9}, {"top_p": 1.0}, {"min_p": 0.01}, {"top_p": 0.99, "min_p": 1e-4}]
)
def test_looking_at_the_best_first_draws_the_same(temperature, given):
    """A vocabulary large enough for the CPU's shortcut, beside a row with top-k and a greedy one."""
    logits = np.round(np.random.default_rng(8).normal(0, 2, (3, 20_000)), 2).astype(np.float32)
    settings = [
        SamplingParams(temperature=temperature, top_k=None, **given),
        SamplingParams(temperature=1.5, top_k=300),
        SamplingParams(temperature=0),
    ]
    expected = [naive.distribution(row.tolist(), s)[0] for row, s in zip(logits, settings, strict=True)]
    for u in (0.0, 0.3, 0.9, 0.99, 0.9999, 0.9999999):
        drawn = tokens_of(logits, settings, [u] * 3).tolist()
        assert drawn == [naive.draw(p, u)[0] for p in expected]
        assert tokens_of(logits[:1], settings[:1], [u]).tolist() == drawn[:1]
        assert tokens_of(logits, settings, [u] * 3, to_torch).tolist() == drawn


class TestEdges:
    def test_temperature_zero_is_greedy_and_takes_the_lowest_id_among_equals(self):
        logits = [1.0, 3.0, 3.0, 2.0]
        for to in (lambda x: x, to_torch):
            assert tokens_of(logits, [SamplingParams(temperature=0)], [0.99], to) == [1]
            mixed = [SamplingParams(temperature=0), SamplingParams(temperature=1, top_k=None)]
            assert tokens_of([logits, logits], mixed, [0.99, 0.9999], to).tolist() == [1, 0]

    def test_a_temperature_next_to_zero_does_not_overflow(self):
        settings = SamplingParams(temperature=1e-300, top_k=None, typical_p=0.5, top_p=0.5)
        assert tokens_of([1.0, 900.0, -900.0], [settings], [0.999999]) == [1]

    def test_top_k_ties_fall_to_lower_ids(self):
        logits = [0.0, 2.0, 2.0, 2.0, 2.0, 1.0]
        u = np.linspace(0, 1, 50, endpoint=False)
        for to in (lambda x: x, to_torch):
            drawn = tokens_of([logits] * 50, [SamplingParams(temperature=1, top_k=2)] * 50, u, to)
            assert set(drawn.tolist()) == {1, 2}

    def test_zero_and_minus_zero_are_equal(self):
        for to in (lambda x: x, to_torch):
            values, ids = rank_tokens(to(np.array([[-0.0, 0.0, -1.0, 0.0]], np.float32)), 4)
            assert np.asarray(ids).tolist() == [[0, 1, 3, 2]]
            assert np.asarray(values).tolist() == [[0, 0, 0, -1]]

    def test_top_p_keeps_the_token_that_crosses(self):
        logits = np.log([0.5, 0.3, 0.2])
        u = np.linspace(0, 1, 100, endpoint=False)
        drawn = tokens_of([logits] * 100, [SamplingParams(temperature=1, top_k=None, top_p=0.6)] * 100, u)
        assert set(drawn.tolist()) == {0, 1}
        tiny = tokens_of([logits] * 100, [SamplingParams(temperature=1, top_k=None, top_p=1e-9)] * 100, u)
        assert set(tiny.tolist()) == {0}

    def test_top_k_beyond_the_vocabulary_is_all_of_it(self):
        u = np.linspace(0, 1, 100, endpoint=False)
        drawn = tokens_of([[1.0, 1.0, 1.0]] * 100, [SamplingParams(temperature=1, top_k=1000)] * 100, u)
        assert set(drawn.tolist()) == {0, 1, 2}

    def test_the_last_uniform_below_one_never_leaves_the_kept_set(self):
        logits = np.random.default_rng(0).normal(0, 1, 500)
        logits[7] = -np.inf
        u = 1 - 2.0**-53
        for to in (lambda x: x, to_torch):
            token = int(tokens_of(logits, [SamplingParams(temperature=1, top_k=None)], [u], to)[0])
            assert token == int(np.argmin(np.where(np.isfinite(logits), logits, np.inf)))

    @pytest.mark.parametrize("greedy", [True, False])
    def test_unusable_logits_are_reported_not_drawn(self, greedy):
        settings = [SamplingParams(temperature=0 if greedy else 1, logprobs=None)] * 4
        rows = np.array(
            [[0, math.nan, 1], [-math.inf] * 3, [0, math.inf, 1], [5, -math.inf, math.nan]], np.float32
        )
        for to in (lambda x: x, to_torch):
            draw = draw_tokens(to(rows), stack_metadata(settings, 3, to), to(np.full(4, 0.5)))
            assert np.asarray(draw.report)[:, 0].tolist() == [NOTHING] * 4
            tokens = np.asarray(draw.tokens)
            assert ((tokens >= 0) & (tokens < 3)).all()  # a device may feed them on before the host looks

    def test_a_huge_vocabulary_with_nan_does_not_break_the_shortcut(self):
        row = np.full((1, 50_257), np.nan, np.float32)
        draw = draw_tokens(row, stack_metadata([SamplingParams()], 50_257, lambda x: x), np.array([0.5]))
        assert draw.report[0, 0] == NOTHING


@given(st.integers(0, 2**32), st.integers(1, 300), st.booleans())
@hypothesis_settings(max_examples=50, deadline=None)
def test_ranking_is_by_logit_then_id_for_every_width(seed, width, ties):
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 4, (2, 5000)).astype(np.float32)
    if ties:
        scores = np.round(scores)
    expected = np.lexsort((np.broadcast_to(np.arange(5000), scores.shape), -scores))[:, :width]
    for to in (lambda x: x, to_torch):
        values, ids = rank_tokens(to(scores), width)
        np.testing.assert_array_equal(np.asarray(ids), expected)
        np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(scores, expected, 1))


def test_full_ranking_of_a_real_vocabulary():
    scores = np.round(np.random.default_rng(1).normal(0, 4, (1, 50_257)), 2).astype(np.float32)
    expected = np.lexsort((np.arange(50_257), -scores[0]))
    for to in (lambda x: x, to_torch):
        np.testing.assert_array_equal(np.asarray(rank_tokens(to(scores), 50_257)[1])[0], expected)


def test_edits_scale_then_shift_and_leave_the_rest_alone():
    logits = np.array([[2.0, -2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]], np.float32)
    ids = np.array([[0, 1, 0], [3, 0, 3]])
    scale = np.array([[2, 2, 2], [1, 1, 1]], np.float32)
    shift = np.array([[0.5, 0, 0.5], [-np.inf, 0, -np.inf]], np.float32)
    for to in (lambda x: x, to_torch):
        given = to(logits.copy())
        result = np.asarray(apply_edits(given, LogitEdits(to(ids), to(scale), to(shift))))
        np.testing.assert_array_equal(result, [[1.5, -4, 1, 0], [1, 1, 1, -np.inf]])
        np.testing.assert_array_equal(np.asarray(given), logits)


def test_logprobs_are_of_the_raw_logits_whatever_the_settings():
    logits = np.random.default_rng(2).normal(0, 3, (2, 50)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    settings = [
        SamplingParams(temperature=0.3, top_k=3, logprobs=5),
        SamplingParams(temperature=2, top_p=0.5, logprobs=0),
    ]
    edits = LogitEdits(*(np.array([[x], [y]]) for x, y in ((4, 4), (1.0, 1.0), (-50.0, -50.0))))
    for to in (lambda x: x, to_torch):
        given = LogitEdits(
            to(edits.ids), to(edits.scale.astype(np.float32)), to(edits.shift.astype(np.float32))
        )
        draw = draw_tokens(to(logits), stack_metadata(settings, 50, to), to(np.array([0.4, 0.6])), given)
        report = np.asarray(draw.report)
        assert report.shape == (2, 2 + 2 * 5)
        for i, token in enumerate(np.asarray(draw.tokens)):
            # exp in float32 over 50 terms: a few units in the seventh digit
            assert report[i, 1] == pytest.approx(exact[i, token], abs=1e-6)
            best = np.argsort(-exact[i], kind="stable")[:5]
            assert report[i, 2:7].tolist() == best.tolist()
            np.testing.assert_allclose(report[i, 7:], exact[i, best], atol=1e-6)


class TestUniformRNG:
    def test_windows_continue_one_stream(self):
        entire = UniformRNG(3, 1).window(0, 500)
        parts = UniformRNG(3, 1)
        pieces = [
            parts.window(0, 64)[:10],
            parts.window(10, 64)[:54],
            parts.window(64, 64),
            parts.window(400, 100),
        ]
        np.testing.assert_array_equal(np.concatenate(pieces[:3]), entire[:128])
        np.testing.assert_array_equal(pieces[3], entire[400:])

    def test_seeds_and_samples_have_their_own_streams(self):
        streams = [
            UniformRNG(seed, sample).window(0, 50).tolist() for seed in (0, 1, 2**64 - 1) for sample in (0, 1)
        ]
        assert len({tuple(stream) for stream in streams}) == 6
        assert all(0 <= u < 1 for stream in streams for u in stream)

    def test_the_stream_of_a_seed_never_changes(self):
        """Texts must come out the same in later versions, too."""
        assert UniformRNG(1, 0).window(0, 3).tolist() == [
            0.3035680343067586,
            0.8487087496857769,
            0.1561347780434731,
        ]
