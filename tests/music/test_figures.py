"""Figures of performances, and copies that are found however they were disguised."""

from __future__ import annotations

import numpy as np
import pytest
from recipes.music.figures import (
    distances,
    estimate_key,
    histograms,
    repetition,
    rhythm_likeness,
    share_in_key,
)

from glassgpt.music import Performance
from glassgpt.music.memorization import longest_copy


def random_piece(seed: int, notes: int = 200, velocity: int = 64) -> Performance:
    rng = np.random.default_rng(seed)
    start = np.cumsum(rng.uniform(0.05, 0.4, notes))
    return Performance.from_notes(
        start, start + rng.uniform(0.1, 1, notes), rng.integers(36, 96, notes), [velocity] * notes
    )


def test_histograms_sum_to_one() -> None:
    for name, found in histograms(random_piece(0)).items():
        assert found.sum() == pytest.approx(1), name
    for name, found in histograms(Performance.from_notes([], [], [], [])).items():
        assert found.sum() <= 1, name


def test_a_chord_of_three_has_three_voices() -> None:
    chord = Performance.from_notes([0, 0, 0], [4, 4, 4], [60, 64, 67], [64] * 3)
    found = histograms(chord)
    assert found["polyphony"][3] > 0.95
    assert found["pitch class"][[0, 4, 7]].tolist() == pytest.approx([1 / 3] * 3)


def test_distances_are_zero_to_itself_and_grow() -> None:
    a, b = [random_piece(i) for i in range(4)], [random_piece(i) for i in range(4, 8)]
    loud = [random_piece(i, velocity=120) for i in range(4)]
    assert set(distances(a, a).values()) == {0.0}
    assert distances(a, b)["velocity"] == 0.0
    assert distances(a, loud)["velocity"] == 1.0
    high = [piece.transpose(24) for piece in a]
    assert distances(a, high)["pitch"] > 2 * distances(a, b)["pitch"]


def test_repeated_bars_are_seen() -> None:
    bar = Performance.from_notes([0, 0.5, 1, 1.5], [0.5, 1, 1.5, 2], [60, 64, 67, 72], [64] * 4)
    times = np.concatenate([bar.start + 2 * i for i in range(6)])
    ends = np.concatenate([bar.end + 2 * i for i in range(6)])
    repeated = Performance.from_notes(times, ends, np.tile(bar.pitch, 6), np.tile(bar.velocity, 6))
    assert repetition(repeated).min() > 0.9
    assert repetition(random_piece(0)).mean() < 0.5


@pytest.mark.parametrize("semitones", [0, 5])
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_a_copy_is_found_transposed_and_slower(semitones: int, factor: float) -> None:
    training = [random_piece(i) for i in range(5)]
    own = random_piece(99, notes=30)
    taken = training[3].crop(5.0, 15.0)
    copied = taken.transpose(semitones).scale_time(factor)
    sample = Performance.from_notes(
        np.concatenate([own.start, own.seconds + 1 + copied.start]),
        np.concatenate([own.end, own.seconds + 1 + copied.end]),
        np.concatenate([own.pitch, copied.pitch]),
        np.concatenate([own.velocity, copied.velocity]),
    )
    found = longest_copy(sample, training)
    assert found.notes >= len(taken) - 6  # those cut at the edges may stand in another order
    assert found.seconds > 8 * factor
    assert found.start > own.seconds


def test_what_is_new_is_hardly_a_copy() -> None:
    training = [random_piece(i) for i in range(5)]
    assert longest_copy(random_piece(99), training).notes < 8
    assert longest_copy(Performance.from_notes([], [], [], []), training).notes == 0
    assert longest_copy(random_piece(1), []).notes == 0
    assert longest_copy(training[2], training).notes == 200


def scale_of(
    tonic: int, steps: tuple[int, ...], beat: float, bars: int = 8, swing: float = 0.0
) -> Performance:
    """A scale up and down, its tonic twice as long, with a chord on every fourth beat."""
    rng = np.random.default_rng(0)
    pitches = [60 + tonic + step for step in (*steps, 12, *reversed(steps))] * 8
    start = np.arange(len(pitches)) * beat + rng.normal(0, swing, len(pitches))
    length = np.where(np.array(pitches) % 12 == tonic % 12, 2 * beat, beat)
    return Performance.from_notes(start.clip(min=0), start.clip(min=0) + length, pitches, [70] * len(pitches))


def test_the_key_of_a_scale_is_found() -> None:
    for tonic in range(12):
        major = scale_of(tonic, (0, 2, 4, 5, 7, 9, 11), 0.5)
        key = estimate_key(major)
        assert share_in_key(major, key) == 1
        assert share_in_key(major.transpose(6), key) < 0.5
    assert share_in_key(Performance.from_notes([], [], [], []), (0,)) == 0


def test_rhythms_are_alike_at_the_same_tempo() -> None:
    steps = (0, 2, 4, 5, 7, 9, 11)
    one, same, other = (scale_of(t, steps, beat, swing=0.008) for t, beat in ((0, 0.5), (5, 0.5), (0, 0.41)))
    assert rhythm_likeness(one, same) > 0.9
    assert rhythm_likeness(one, other) < 0.5
