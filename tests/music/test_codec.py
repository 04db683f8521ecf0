"""Performance <-> events: the article's example both ways, and performances of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.errors import SettingError
from glassgpt.music import Performance, PerformanceTokenizer
from glassgpt.music.event_codec import Player

STEP = 0.01
# Velocity 80: C, half a second later E, then G; all end after another second. Then F at velocity 100.
ARTICLE = Performance.from_notes([0, 0.5, 1, 2.5], [2, 2, 2, 3], [60, 64, 67, 65], [80, 80, 80, 100])
ARTICLE_IDS = [375, 60, 305, 64, 305, 67, 355, 188, 192, 195, 305, 380, 65, 305, 193]


def assert_same_notes(found: Performance, wanted: Performance) -> None:
    """Within 10 ms and one velocity bin, pitch by pitch."""
    assert sorted(found.pitch) == sorted(wanted.pitch)
    for pitch in set(wanted.pitch.tolist()):
        a, b = (p.pitch == pitch for p in (found, wanted))
        for times in ("start", "end"):
            got, given = np.sort(getattr(found, times)[a]), np.sort(getattr(wanted, times)[b])
            assert abs(got - given).max() <= STEP + 1e-9
        assert ((found.velocity[a] - 1) // 4).tolist() == ((wanted.velocity[b] - 1) // 4).tolist()


def test_the_articles_example() -> None:
    tokenizer = PerformanceTokenizer()
    assert tokenizer.encode(ARTICLE).tolist() == ARTICLE_IDS
    assert_same_notes(tokenizer.decode(ARTICLE_IDS), ARTICLE)


def test_the_ids_are_the_papers() -> None:
    events = PerformanceTokenizer().vocabulary
    assert (events.note_on, events.note_off, events.time_shift, events.velocity) == (0, 128, 256, 356)
    assert events.size == len(events.names) == 388
    assert [events.names[i] for i in (60, 188, 305, 375)] == [
        "NOTE_ON_60", "NOTE_OFF_60", "TIME_SHIFT_50", "VELOCITY_20",
    ]  # fmt: skip


def test_magentas_variant_has_a_pianos_keys() -> None:
    tokenizer = PerformanceTokenizer("magenta")
    events = tokenizer.vocabulary
    assert events.size == len(events.names) == 310
    beyond = Performance.from_notes([0, 0, 0], [1, 1, 1], [20, 21, 109], [64, 64, 64])
    assert tokenizer.decode(tokenizer.encode(beyond)).pitch.tolist() == [21]
    with pytest.raises(SettingError, match="'midi' is not one of performance, magenta"):
        PerformanceTokenizer("midi")


def test_a_long_pause_is_whole_seconds_and_the_rest() -> None:
    late = Performance.from_notes([3.25], [4.25], [60], [1])
    assert PerformanceTokenizer().encode(late).tolist() == [355, 355, 355, 280, 356, 60, 355, 188]


def test_velocity_is_written_when_its_bin_changes() -> None:
    same_bin = Performance.from_notes([0, 1, 2], [1, 2, 3], [60, 60, 60], [77, 80, 81])
    ids = PerformanceTokenizer().encode(same_bin).tolist()
    assert [i for i in ids if i >= 356] == [375, 376]


def test_a_key_struck_again_ends_first() -> None:
    repeated = Performance.from_notes([0, 1], [1, 2], [60, 60], [80, 80])
    assert PerformanceTokenizer().encode(repeated).tolist() == [375, 60, 355, 188, 60, 355, 188]


def test_any_events_have_a_meaning() -> None:
    tokenizer = PerformanceTokenizer()
    odd = [188, 60, 355, 60, 355, 188, 64]  # an end of nothing, a pitch doubled, a note never ended
    notes = tokenizer.decode(odd)
    assert notes.start.tolist() == [0, 1]
    assert notes.end.tolist() == [2, 2]
    assert len(tokenizer.decode([])) == 0
    for wrong in (388, -1):
        with pytest.raises(SettingError, match=f"{wrong} is not the id of an event"):
            tokenizer.decode([60, wrong])


TIMES = st.floats(0, 20, allow_nan=False)
NOTE = st.tuples(TIMES, st.floats(0.02, 5), st.integers(0, 127), st.integers(1, 127))


@given(st.lists(NOTE, max_size=40))
def test_performances_come_back(notes: list[tuple[float, float, int, int]]) -> None:
    # Of two onsets of a pitch within a step of 10 ms nobody can say which was which.
    apart: list[tuple[float, float, int, int]] = []
    for note in notes:
        if all(note[2] != other[2] or abs(note[0] - other[0]) > 2 * STEP for other in apart):
            apart.append(note)
    start, length, pitch, velocity = np.array(apart, np.float64).reshape(-1, 4).T
    wanted = Performance.from_notes(start, start + length, pitch, velocity)
    tokenizer = PerformanceTokenizer()
    ids = tokenizer.encode(wanted)
    assert ((ids >= 0) & (ids < 388)).all()
    assert_same_notes(tokenizer.decode(ids.tolist()), wanted)


@given(st.lists(st.integers(0, 387), max_size=200))
def test_what_is_decoded_is_encoded_the_same_again(ids: list[int]) -> None:
    tokenizer = PerformanceTokenizer()
    notes = tokenizer.decode(ids)
    again = tokenizer.decode(tokenizer.encode(notes).tolist())
    assert (again.start == notes.start).all()
    assert (again.end == notes.end).all()
    assert (again.pitch == notes.pitch).all()


def test_transposed_stretched_and_clipped() -> None:
    assert ARTICLE.transpose(-3).pitch.tolist() == [57, 61, 64, 62]
    assert Performance.from_notes([0], [1], [126], [64]).transpose(3).pitch.tolist() == []
    assert ARTICLE.scale_time(2).end.tolist() == [4, 4, 4, 6]
    middle = ARTICLE.crop(0.75, 2.75)
    assert middle.start.tolist() == [0, 0, 0.25, 1.75]
    assert middle.end.tolist() == [1.25, 1.25, 1.25, 2]


def test_a_key_that_is_struck_again_ends_its_note() -> None:
    ids = [60, 305, 60, 305, 188]  # on, 0.5 s, on, 0.5 s, off
    two, one = (
        Player(PerformanceTokenizer().vocabulary),
        Player(PerformanceTokenizer().vocabulary, one_key=True),
    )
    for id in ids:
        two.push(id)
        one.push(id)
    assert two.performance().end.tolist() == [1.0, 1.0]  # first in, first out; the second ends with the piece
    assert one.performance().end.tolist() == [0.5, 1.0]
    assert not one.sounding
