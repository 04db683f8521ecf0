"""What may follow in music that is being made.

`PlayRule` is a rule of `gpt.generate` that knows what time it is in the music: it ends the music exactly at
the requested time, and keeps out events that cannot follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from glassgpt.music.event_codec import Player
from glassgpt.progress import Advance
from glassgpt.tokenizer.events import MAX_SHIFT, EventTokenizer

MAX_RESTS = 30  # events before the first note
BAN, FORCE = (1.0, -math.inf), (1.0, 1e6)  # changes of a logit


class PlayRule:
    """What may follow in music that is being made; a `TokenRule`.

    Until the time `end` the music does not end; then nothing but `finish` may follow. A TIME_SHIFT that
    leads beyond it leads to it: were it left out, a model that wants to wait would have to play, and did,
    many notes at once just before the end. Before `begin` nothing happens: a primer may be cut in the middle
    of a pause, and the model says how long the pause is, at least until the cut. With `at_once`,
    time begins with the first note, and rests before it take none: were they kept out, a model of songs
    would rest after its first note. With `mask`, events that `encode` never writes are excluded: the end of a
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
        self.last_pause: int | None = None  # as played, if the end cuts it short
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
        """The events that were pushed, with the last pause as it was played."""
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
