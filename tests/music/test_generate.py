"""Music from a model: exact lengths, primers that stay, events that cannot follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from glassgpt.music import Performance, PerformanceTokenizer
from glassgpt.music.arcs import attention_arcs, place_events
from glassgpt.music.event_codec import Player
from glassgpt.music.generate import InterruptedMusic, PlayRule, accompany, continue_primer, sample
from glassgpt.music.generate.compose import drop_rests
from glassgpt.music.generate.primer import cut_primer
from glassgpt.music.generate.rule import MAX_RESTS
from glassgpt.music.settings import Sampling
from glassgpt.progress import Progress
from glassgpt.tokenizer import ByteTokenizer, EventTokenizer
from tests.music.test_codec import ARTICLE, ARTICLE_IDS
from tests.music.test_prepare import piece


def make(melody: bool = True, n_positions: int = 256) -> GPT:
    """A model that knows nothing: every event is as likely as any other, so that every rule is needed."""
    torch.manual_seed(0)
    tokenizer = EventTokenizer(melody=melody)
    config = Config(n_layer=1, n_embd=16, n_head=2, vocab_size=tokenizer.vocab_size, n_positions=n_positions)
    return GPT(TorchBackend(GPT2(config).eval()), tokenizer, "random")


@pytest.fixture(scope="module")
def gpt() -> GPT:
    return make()


def test_music_has_exactly_the_length_asked_for(gpt: GPT) -> None:
    for seconds in (0.01, 1.37):
        (take,) = sample(gpt, seconds, seed=5)
        assert take.seconds == seconds
        player = Player(gpt.tokenizer.events)
        for id in take.ids:
            player.push(id)
        assert player.now == round(seconds * 100)
        assert take.performance.seconds <= seconds + 1e-9


def test_music_begins_with_a_note_and_no_note_sounds_forever(gpt: GPT) -> None:
    (take,) = sample(gpt, 25, seed=3)
    assert take.performance.start[0] == 0
    lengths = take.performance.end - take.performance.start
    assert lengths.max() == pytest.approx(10)  # such a model forgets to end many
    held = Performance.from_notes([0.0], [30.0], [60], [64])
    (take,) = continue_primer(gpt, held, 20, cut=15, seed=2)
    assert 15 <= take.performance.end[0] <= 25


def test_takes_differ_and_seeds_repeat(gpt: GPT) -> None:
    one, two = sample(gpt, 0.5, samples=2, seed=1)
    assert one.ids != two.ids
    assert [take.ids for take in sample(gpt, 0.5, samples=2, seed=1)] == [one.ids, two.ids]
    assert sample(gpt, 0.5, seed=2)[0].ids != one.ids


def test_ctrl_c_leaves_what_there_is(gpt: GPT) -> None:
    whole = sample(gpt, 8, samples=2, seed=1)
    with pytest.raises(InterruptedMusic) as caught:
        sample(gpt, 8, samples=2, seed=1, progress=stop_after(60))
    assert len(caught.value.samples) == 2
    for part, take in zip(caught.value.samples, whole, strict=True):
        assert 10 < len(part.ids) < len(take.ids)
        assert part.ids == take.ids[: len(part.ids)]
        assert part.seconds < take.seconds
        assert part.notes == [f"interrupted after {part.seconds:.1f} of 8.0 s"]


def test_ctrl_c_leaves_what_there_is_of_an_accompaniment() -> None:
    gpt, melody = make(n_positions=256), piece(4, 5, 2.0)
    events: list[int] = []
    whole = accompany(gpt, melody, samples=2, seed=3, progress=stop_after(10**9, events))
    for count, finished in ((len(events) * 3 // 4, 1), (len(events) // 4, 0)):
        with pytest.raises(InterruptedMusic) as caught:
            accompany(gpt, melody, samples=2, seed=3, progress=stop_after(count))
        takes = caught.value.samples
        assert len(takes) == finished + 1  # the last of them is cut short
        assert [take.ids for take in takes[:-1]] == [take.ids for take in whole[:finished]]
        assert not any(take.notes for take in takes[:-1])
        ids = whole[finished].ids
        assert 10 < len(takes[-1].ids) < len(ids)
        assert takes[-1].ids == ids[: len(takes[-1].ids)]
        assert len(takes[-1].performance)
        length = whole[finished].seconds
        assert takes[-1].notes == [f"interrupted after {takes[-1].seconds:.1f} of {length:.1f} s"]


def stop_after(count: int, events: list[int] | None = None) -> Progress:
    """A progress bar that presses Ctrl-C after so many events."""
    events = [] if events is None else events

    @contextmanager
    def stop_soon(*args: object, **options: object) -> Iterator[Callable[[int], None]]:
        def advance(amount: int) -> None:
            events.append(amount)
            if len(events) > count:
                raise KeyboardInterrupt

        yield advance

    return stop_soon


def test_events_that_cannot_follow_are_left_out(gpt: GPT) -> None:
    """What the model writes is what `encode` would have written."""
    (take,) = sample(gpt, 4, seed=1)
    events, player = gpt.tokenizer.events, Player(gpt.tokenizer.events)
    for id, following in pairwise(take.ids):
        if events.note_off <= id < events.time_shift:
            assert id - events.note_off in player.sounding
        if id >= events.velocity:
            assert following < events.note_off
        if events.time_shift <= id < events.velocity - 1:
            assert not events.time_shift <= following < events.velocity
        player.push(id)
    (free,) = sample(gpt, 4, seed=1, sampling=Sampling(allow_impossible=True))
    player = Player(events)
    silent = 0
    for id in free.ids:
        silent += events.note_off <= id < events.time_shift and id - events.note_off not in player.sounding
        player.push(id)
    assert silent > 0  # such a model writes anything


@pytest.mark.parametrize("cut", [0.5, 3.333, 40.0])
def test_a_primer_stays_as_it_was_played(gpt: GPT, cut: float) -> None:
    primer = piece(3, 60)
    (take,) = continue_primer(gpt, primer, 3, cut=cut, seed=1)
    assert take.seconds == pytest.approx(round(cut * 100) / 100 + 3)
    kept = take.performance.choose(take.performance.start < cut - 0.005)
    given = primer.choose(primer.start < cut - 0.005)
    assert np.array_equal(kept.start, given.start)
    assert np.array_equal(kept.pitch, given.pitch)
    assert np.array_equal(kept.velocity, given.velocity)
    over = given.end < cut - 0.005
    assert np.array_equal(kept.end[over], given.end[over])
    assert (kept.end[~over] >= cut - 0.011).all()  # what is held goes on
    assert len(take.composed)
    assert (take.composed.start >= round(cut * 100) / 100).all()


def test_a_primer_is_cut_between_events() -> None:
    codec = PerformanceTokenizer()
    part = cut_primer(ARTICLE, 220, codec)  # in the middle of a pause, after the first chord
    assert part.ids == ARTICLE_IDS[:10]
    assert (len(part.finished), len(part.held)) == (3, 0)
    part = cut_primer(ARTICLE, 120, codec)
    assert part.ids == ARTICLE_IDS[:6]
    assert (len(part.finished), len(part.held)) == (0, 3)
    assert sorted(part.player(codec).sounding) == [60, 64, 67]


def test_the_pause_at_the_cut_is_not_over(gpt: GPT) -> None:
    """The first event that the model adds leads at least to the cut."""
    tokenizer = EventTokenizer()
    rule = PlayRule(tokenizer, Player(tokenizer.events, now=200), end=500, finish=388, begin=350)
    allowed = [id for id in range(389) if id not in rule.changes()]
    assert allowed == [355]  # a whole second
    rule.push(355)
    allowed = [id for id in range(389) if id not in rule.changes()]
    assert allowed == list(range(305, 356))  # half a second or more
    rule.push(305)
    assert {id for id in range(128) if id in rule.changes()} == set()  # now notes may begin


def test_only_the_end_follows_at_the_end() -> None:
    tokenizer = EventTokenizer(melody=True)
    rule = PlayRule(tokenizer, Player(tokenizer.events), end=30, finish=388)
    changes = rule.changes()
    assert all(id in changes for id in (388, 389, 390))  # not yet
    assert not any(id in changes for id in range(256, 356))
    rule.push(285)
    assert list(rule.changes()) == [388]
    assert rule.changes()[388][1] > 1e5


def test_a_pause_beyond_the_end_ends_there() -> None:
    """A model that wants to wait at the end is not made to play instead."""
    tokenizer = EventTokenizer()
    note, pause, rest = tokenizer.encode("NOTE_ON_60 TIME_SHIFT_100 TIME_SHIFT_30")
    rule = PlayRule(tokenizer, Player(tokenizer.events), end=30, finish=388)
    rule.push(note)
    assert pause not in rule.changes()
    rule.push(pause)
    assert rule.player.now == 30
    assert list(rule.changes()) == [388]
    assert rule.as_played([note, pause]) == [note, rest]


@pytest.mark.parametrize("n_positions", [256, pytest.param(2048, marks=pytest.mark.slow)])
def test_an_accompaniment_is_as_long_as_its_melody(n_positions: int) -> None:
    melody = piece(4, 30, 18.0)
    takes = accompany(make(n_positions=n_positions), melody, samples=2, seed=3)
    assert takes[0].ids != takes[1].ids
    for take in takes:
        assert take.seconds == pytest.approx(melody.seconds, abs=0.011)
        assert 0 < take.performance.seconds <= take.seconds
        assert take.ids.count(389) == take.ids.count(390) == 3  # stretches of eight seconds
    both = takes[0].performance.merge(melody)
    assert len(both) == len(takes[0].performance) + len(melody)


def test_models_and_values_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="has not learned to accompany"):
        accompany(make(melody=False), piece(1))
    with pytest.raises(SettingError, match="no notes"):
        accompany(make(), Performance.from_notes([], [], [], []))
    text = GPT(
        TorchBackend(GPT2(Config(n_layer=1, n_embd=8, n_head=1, vocab_size=257))), ByteTokenizer(), "t"
    )
    with pytest.raises(UserError, match="not a model of piano performances"):
        sample(text, 1)
    for seconds, samples, seed in ((0, 1, 1), (1e9, 1, 1), (1, 0, 1), (1, 1, -1)):
        with pytest.raises(SettingError):
            sample(make(), seconds, samples=samples, seed=seed)
    with pytest.raises(SettingError, match="top_p is 3"):
        Sampling(top_p=3)


def test_events_have_a_place_on_the_roll() -> None:
    places = place_events(ARTICLE_IDS, EventTokenizer().events)
    assert places[:4] == [(0.0, 60.0), (0.0, 60.0), (0.5, 64.0), (0.5, 64.0)]
    assert places[7] == (2.0, 60.0)  # NOTE_OFF_60
    assert places[10:13] == [(2.5, 65.0), (2.5, 65.0), (2.5, 65.0)]


def test_arcs_are_the_attention_of_a_query(gpt: GPT) -> None:
    arcs = attention_arcs(gpt, ARTICLE_IDS, event=8, layer=0, per_head=4)
    assert len(arcs) == 8
    row = gpt.trace([388, *ARTICLE_IDS[:9]]).attention[0, 1][-1]
    best = int(np.argmax(row[1:]))
    places = place_events(ARTICLE_IDS, gpt.tokenizer.events)
    assert (arcs[4].to_seconds, arcs[4].to_pitch) == places[best]
    assert arcs[4].weight == pytest.approx(float(row[1:].max()))
    with pytest.raises(SettingError, match="head 7 does not exist"):
        attention_arcs(gpt, ARTICLE_IDS, heads=[7])
    with pytest.raises(SettingError, match="event is 99"):
        attention_arcs(gpt, ARTICLE_IDS, event=99)


def test_rests_before_the_first_note_take_no_time() -> None:
    tokenizer = EventTokenizer()
    shift, note, velocity = tokenizer.encode("TIME_SHIFT_100 NOTE_ON_60 VELOCITY_9")
    rule = PlayRule(tokenizer, Player(tokenizer.events), end=300, finish=388, at_once=True)
    for _ in range(MAX_RESTS):
        assert shift not in rule.changes()
        rule.push(shift)
    assert shift in rule.changes()  # no model rests forever
    for id in (velocity, note, shift):
        rule.push(id)
    assert rule.player.now == 100
    assert drop_rests([shift, shift, velocity, note, shift], tokenizer.events) == [velocity, note, shift]
