"""A model makes music: from nothing, after a primer, around a melody.

    gpt = glassgpt.load("music")
    take, = sample(gpt, seconds=30, seed=1)
    write_midi(take.performance, "a.mid", take.seconds)

All of it is `gpt.generate` with a rule (`PlayRule`) that knows what time it is in the music: it ends the
music exactly where asked, and keeps out events that cannot follow. A key that is struck while it sounds ends
its former note, and none sounds longer than ten seconds: a model now and then forgets a NOTE_OFF, and the
note would sound forever. Music from nothing begins with its first note: the rest that many a song begins with
is the model's to write, but takes no time.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.generate.generation import Interrupted
from glassgpt.gpt import GPT
from glassgpt.music.accompany import STRETCH, split_by_time
from glassgpt.music.codec import PerformanceTokenizer, Player, to_steps
from glassgpt.music.performance import Performance
from glassgpt.music.settings import Sampling
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import SEEDS, check_number, check_whole
from glassgpt.tokenizer.events import (
    ACCOMPANIMENT,
    MAX_SHIFT,
    MELODY,
    STEPS_PER_SECOND,
    EventTokenizer,
    EventVocabulary,
)

MAX_SECONDS = 3600.0
MAX_TAKES = 64
MAX_RESTS = 30  # events before the first note
LONGEST = 10.0  # seconds of a note: a piano's string has faded by then
BAN, FORCE = (1.0, -math.inf), (1.0, 1e6)  # changes of a logit

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Take:
    """Music that a model made."""

    performance: Performance
    seconds: float
    ids: list[int]  # the model's own events
    seed: int
    primer_seconds: float = 0.0  # what was given, not made
    notes: list[str] = field(default_factory=list)  # remarks, such as that the context was exceeded

    @property
    def made(self) -> Performance:
        """The notes that the model began."""
        return self.performance.choose(self.performance.start >= self.primer_seconds)


class InterruptedTakes(KeyboardInterrupt):
    """Ctrl-C while music was made. `takes` has what there is of each."""

    def __init__(self, takes: list[Take]) -> None:
        super().__init__()
        self.takes = takes


class PlayRule:
    """What may follow in music that is being made; a `TokenRule`.

    Until the time `end` the music does not end; then nothing but `finish` may follow. A TIME_SHIFT that
    leads beyond it leads to it: were it left out, a model that wants to wait would have to play, and did,
    many notes at once just before the end. Before `begin` nothing happens: a primer is cut in the middle
    of a pause, and the model says how long the pause is, given that it is not over yet. With `at_once`,
    time begins with the first note, and rests before it take none: were they kept out, a model of songs
    would rest after its first note. With `mask`, what `encode` never writes is left out: the end of a
    note that does not sound, VELOCITY before anything but a NOTE_ON, and a pause after a pause that was
    not a whole second.
    """

    def __init__(
        self,
        tokenizer: EventTokenizer,
        player: Player,
        end: int,
        finish: int,
        *,
        begin: int = 0,
        mask: bool = True,
        may_finish: bool = False,
        at_once: bool = False,
        advance: Advance = lambda steps: None,
    ) -> None:
        events = tokenizer.events
        self.events, self.player, self.end, self.finish, self.begin = events, player, end, finish, begin
        self.mask, self.advance = mask, advance
        self.waiting = at_once  # for the first note
        self.rests = 0  # before it
        self.last = -1
        self.last_pause: int | None = None  # as it is played, if the end cuts it short
        special = range(events.size, tokenizer.vocab_size)
        self.never = {id: BAN for id in special if id != finish or not may_finish}
        self.never |= dict.fromkeys(range(events.reserved), BAN)
        self.notes = range(events.note_on, events.time_shift)
        self.note_offs = range(events.note_off, events.time_shift)
        self.shifts = range(events.time_shift, events.velocity)
        self.velocities = range(events.velocity, events.size)

    def push(self, token: int) -> None:
        if token < self.events.size:
            self.last = token
            if self.waiting and token in self.shifts:
                self.rests += 1
                return
            before = self.player.now
            played = min(token, self.shifts[0] + self.end - before - 1) if token in self.shifts else token
            self.player.push(played)
            self.waiting = self.waiting and not self.player.sounding
            self.advance(self.player.now - before)
            if played != token:
                self.last_pause = played

    def as_played(self, ids: list[int]) -> list[int]:
        """The events that were pushed, with the last pause as long as it is."""
        return ids if self.last_pause is None else [*ids[:-1], self.last_pause]

    def changes(self) -> dict[int, tuple[float, float]]:
        if self.player.now >= self.end:
            return {self.finish: FORCE}
        banned = dict(self.never)
        if self.waiting:
            banned |= dict.fromkeys(self.note_offs, BAN)
            if self.rests >= MAX_RESTS:
                banned |= dict.fromkeys(self.shifts, BAN)
        wait = self.begin - self.player.now
        if wait > 0:
            banned |= dict.fromkeys((*self.notes, *self.velocities), BAN)
            banned |= dict.fromkeys(self.shifts[: min(wait, MAX_SHIFT) - 1], BAN)
        elif self.mask:
            banned |= dict.fromkeys(self.impossible(), BAN)
        return banned

    def impossible(self) -> Iterator[int]:
        events = self.events
        if self.last in self.velocities:
            yield from (*self.note_offs, *self.shifts, *self.velocities)
            return
        if self.last in self.shifts and self.last != self.shifts[-1]:
            yield from self.shifts
        sounding = self.player.sounding
        yield from (id for id in self.note_offs if id - events.note_off + events.lowest not in sounding)


def sample(
    gpt: GPT,
    seconds: float = 30.0,
    *,
    takes: int = 1,
    seed: int | None = None,
    sampling: Sampling | None = None,
    progress: Progress = no_progress,
) -> list[Take]:
    """Music from nothing, of exactly so many seconds."""
    return generate(gpt, [], Primer(), seconds, takes, seed, sampling, progress)


def continue_primer(
    gpt: GPT,
    primer: Performance,
    seconds: float = 30.0,
    *,
    cut: float | None = None,
    takes: int = 1,
    seed: int | None = None,
    sampling: Sampling | None = None,
    progress: Progress = no_progress,
) -> list[Take]:
    """The primer up to the time `cut` (its end if left out), and so many seconds that the model adds.

    Every note that began before the cut is kept as it was played; one that is still held there ends when the
    model says so.
    """
    if cut is None:
        cut = primer.seconds
    check_number("cut", cut, 0.01, MAX_SECONDS, "seconds of the primer")
    codec = PerformanceTokenizer(tokenizer_of(gpt).events.name)
    part = cut_primer(primer, round(cut * STEPS_PER_SECOND), codec)
    return generate(gpt, part.ids, part, seconds, takes, seed, sampling, progress)


@dataclass(frozen=True)
class Primer:
    """What was played before the model goes on."""

    cut: int = 0  # steps
    ids: list[int] = field(default_factory=list)  # the events until then
    finished: Performance = field(default_factory=lambda: Performance.from_notes([], [], [], []))
    held: Performance = field(default_factory=lambda: Performance.from_notes([], [], [], []))

    def player(self, codec: PerformanceTokenizer) -> Player:
        """The player at the cut: the held notes sound."""
        player = Player(codec.vocabulary)
        for id in self.ids:
            player.push(id)
        player.notes.clear()
        player.one_key = True
        return player

    def join(self, played: Performance) -> Performance:
        """The primer's notes as they were played, and the model's."""
        held = self.held
        started = played.start < self.cut / STEPS_PER_SECOND  # the held notes, now with an end
        kept = Performance(played.start[~started], played.end[~started], played.pitch[~started],
                           played.velocity[~started])  # fmt: skip
        by_pitch = np.lexsort((held.start, held.pitch))
        ends = played.end[started][np.lexsort((played.start[started], played.pitch[started]))]
        held = Performance(held.start[by_pitch], ends, held.pitch[by_pitch], held.velocity[by_pitch])
        return self.finished.merge(held).merge(kept)


def cut_primer(primer: Performance, cut: int, codec: PerformanceTokenizer) -> Primer:
    """The primer's notes that began before the cut (in steps), and its events until then.

    Notes beyond the vocabulary's range of pitches are dropped, as they are in encoding.
    """
    events = codec.vocabulary
    on, off = to_steps(primer)
    began = (on < cut) & (primer.pitch >= events.lowest) & (primer.pitch <= events.highest)
    over = off <= cut
    finished, held = (primer.choose(began & over), primer.choose(began & ~over))
    ids, now = [], 0
    for id in codec.encode(primer.choose(began)).tolist():
        if events.time_shift <= id < events.velocity:
            now += id - events.time_shift + 1
        if now > cut:
            break
        ids.append(id)
    while ids and events.time_shift <= ids[-1] < events.velocity:
        ids.pop()
    return Primer(cut, ids, finished, held)


def generate(
    gpt: GPT,
    prompt: Sequence[int],
    primer: Primer,
    seconds: float,
    takes: int,
    seed: int | None,
    sampling: Sampling | None,
    progress: Progress,
) -> list[Take]:
    """Takes of a primer and so many seconds after it. Ctrl-C raises `InterruptedTakes`."""
    tokenizer = tokenizer_of(gpt)
    codec = PerformanceTokenizer(tokenizer.events.name)
    sampling = Sampling() if sampling is None else sampling
    check(seconds, takes, seed)
    seed = secrets.randbits(32) if seed is None else seed
    end = primer.cut + round(seconds * STEPS_PER_SECOND)
    rules: list[PlayRule] = []

    with progress("composing", takes * (end - primer.cut), unit="steps of 10 ms") as advance:

        def rule() -> PlayRule:
            rule = PlayRule(
                tokenizer, primer.player(codec), end, tokenizer.eot_id, begin=primer.cut,
                mask=not sampling.allow_impossible, at_once=primer.cut == 0, advance=advance,
            )  # fmt: skip
            rules.append(rule)
            return rule

        settings = sampling.settings(seconds, seed=seed, samples=takes)
        interrupted = False
        try:
            found = gpt.generate([tokenizer.eot_id, *prompt], settings=settings, rule=rule).samples
        except Interrupted as interrupt:
            found, interrupted = interrupt.generations[0], True
    made = []
    for generation in found:
        played = rules[generation.sample]
        player = played.player
        last = max(primer.cut, player.now) if interrupted else end
        remarks = cut_short(last - primer.cut, end - primer.cut) if interrupted else unfinished(player, end)
        notes = [*generation.notes, *remarks]
        performance = primer.join(fade(player.performance(), primer.cut))
        primed = primer.cut / STEPS_PER_SECOND
        ids = played.as_played(generation.tokens)
        if primer.cut == 0:
            ids = drop_rests(ids, tokenizer.events)
        made.append(Take(performance, last / STEPS_PER_SECOND, ids, seed, primed, notes))
    if interrupted:
        raise InterruptedTakes([take for take in made if take.ids])
    return made


def drop_rests(ids: list[int], events: EventVocabulary) -> list[int]:
    """Without what takes no time: TIME_SHIFTs before the first note."""
    note_ons = range(events.note_on, events.note_off)
    first = next((place for place, id in enumerate(ids) if id in note_ons), len(ids))
    return [id for id in ids[:first] if not events.time_shift <= id < events.velocity] + ids[first:]


def fade(performance: Performance, begin: int = 0) -> Performance:
    """No note longer than LONGEST, counted from `begin` (in steps) if it sounds by then."""
    since = performance.start.clip(min=begin / STEPS_PER_SECOND)
    end = np.minimum(performance.end, since + LONGEST)
    return Performance(performance.start, end, performance.pitch, performance.velocity)


def cut_short(steps: int, of: int) -> list[str]:
    if steps >= of:
        return []
    return [f"interrupted after {steps / STEPS_PER_SECOND:.1f} of {of / STEPS_PER_SECOND:.1f} s"]


def unfinished(player: Player, end: int) -> list[str]:
    if player.now >= end:
        return []
    seconds = player.now / STEPS_PER_SECOND
    return [f"the model wrote so many events at once that the music ends after {seconds:.1f} s"]


def accompany(
    gpt: GPT,
    melody: Performance,
    *,
    takes: int = 1,
    seed: int | None = None,
    sampling: Sampling | None = None,
    progress: Progress = no_progress,
) -> list[Take]:
    """An accompaniment to a melody, as long as it is. A take's performance is the accompaniment alone. Ctrl-C
    raises `InterruptedTakes`."""
    tokenizer = tokenizer_of(gpt)
    if not tokenizer.melody:
        raise UserError(
            f"{gpt.name} has not learned to accompany. Train a model on songs prepared with --melody TRACK."
        )
    if not len(melody):
        raise SettingError("the melody has no notes. Choose another track.")
    check(melody.seconds, takes, seed)
    sampling = Sampling() if sampling is None else sampling
    seed = secrets.randbits(32) if seed is None else seed
    codec = PerformanceTokenizer(tokenizer.events.name)
    stretches = split_by_time(codec.encode(melody).tolist(), tokenizer.events)
    end = math.ceil(melody.seconds * STEPS_PER_SECOND)
    made: list[Take] = []
    with progress("accompanying", takes * end, unit="steps of 10 ms") as advance:
        try:
            for number in range(takes):
                own_seed = (seed + number) % SEEDS
                made.append(accompany_once(gpt, tokenizer, stretches, end, own_seed, sampling, advance))
        except InterruptedTakes as interrupt:
            raise InterruptedTakes(made + interrupt.takes) from None
    return made


def accompany_once(
    gpt: GPT,
    tokenizer: EventTokenizer,
    stretches: Sequence[Sequence[int]],
    end: int,
    seed: int,
    sampling: Sampling,
    advance: Advance,
) -> Take:
    """Stretch by stretch: the melody's events are given, the accompaniment's drawn."""
    before, after = tokenizer.encode(f"{MELODY} {ACCOMPANIMENT}")
    player = Player(tokenizer.events, one_key=True)
    settings = sampling.settings(STRETCH / STEPS_PER_SECOND, stop_tokens=(before,))
    history: list[list[int]] = []

    def take() -> Take:
        ids = [id for stretch in history for id in stretch]
        remarks = cut_short(player.now, end)
        return Take(fade(player.performance()), player.now / STEPS_PER_SECOND, ids, seed, notes=remarks)

    try:
        for number, sung in enumerate(stretches):
            player.now = number * STRETCH
            until = min(end, player.now + STRETCH)
            rule = PlayRule(
                tokenizer,
                player,
                until,
                before,
                mask=not sampling.allow_impossible,
                may_finish=True,
                advance=advance,
            )
            history.append([before, *sung, after])
            prompt = fit([[tokenizer.eot_id], *history], gpt.config.n_positions * 3 // 4)
            drawn = gpt.generate(
                prompt, settings=settings, rule=partial(same, rule), seed=(seed + number) % SEEDS
            )
            history[-1] += rule.as_played(drawn.tokens)
            advance(until - player.now)
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, Interrupted):
            history[-1] += [id for generation in interrupt.generations[0] for id in generation.tokens]
        raise InterruptedTakes([take()] if player.now else []) from None
    player.now = end
    return take()


def same(rule: PlayRule) -> PlayRule:
    return rule


def fit(history: Sequence[list[int]], limit: int) -> list[int]:
    """The last stretches that fit; at least the last one."""
    kept: list[int] = []
    for stretch in reversed(history):
        if kept and len(kept) + len(stretch) > limit:
            break
        kept = stretch + kept
    return kept


def tokenizer_of(gpt: GPT) -> EventTokenizer:
    tokenizer: object = gpt.tokenizer
    if not isinstance(tokenizer, EventTokenizer):
        raise UserError(
            f"{gpt.name or 'this model'} is not a model of piano performances. Name one, such as music, or "
            "train one: see glassgpt music prepare --help"
        )
    return tokenizer


def check(seconds: float, takes: int, seed: int | None) -> None:
    check_number("seconds", seconds, 0.01, MAX_SECONDS, "30 is half a minute")
    check_whole("takes", takes, 1, MAX_TAKES)
    if seed is not None:
        check_whole("seed", seed, 0, SEEDS)
