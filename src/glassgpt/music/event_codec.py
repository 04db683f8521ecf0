"""Performance <-> event ids.

    tokenizer = PerformanceTokenizer()
    ids = tokenizer.encode_file("sonata.mid")
    tokenizer.decode(ids).start

Times are rounded to steps of 10 ms from the beginning of the piece, so rounding errors do not add up. In
the same step, notes end before notes begin, low pitches first. VELOCITY precedes the first NOTE_ON that needs
it, and is written only when its bin changes. A pause is encoded as TIME_SHIFTs of a whole second, then the
rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glassgpt.errors import SettingError
from glassgpt.music.performance import Performance
from glassgpt.tokenizer.events import (
    MAX_SHIFT,
    STEPS_PER_SECOND,
    VELOCITIES_PER_BIN,
    EventVocabulary,
    find_vocabulary,
)

Ids = npt.NDArray[np.int64]


class PerformanceTokenizer:
    """Turns performances and MIDI files into event ids and back. `events` is "performance" (the
    paper's 388 events) or "magenta" (310)."""

    def __init__(self, events: str = "performance") -> None:
        self.vocabulary: EventVocabulary = find_vocabulary(events)

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    def encode_file(self, path: str | Path, tracks: Iterable[str] | None = None) -> list[int]:
        """The events of a MIDI file: of all its tracks except drums, or of those in `tracks`."""
        from glassgpt.music.midi import read_midi

        ids: list[int] = self.encode(read_midi(path, tracks)).tolist()
        return ids

    def encode(self, performance: Performance) -> Ids:
        """The event ids of a performance. Notes beyond the vocabulary's range of pitches are dropped."""
        events = self.vocabulary
        playable = (performance.pitch >= events.lowest) & (performance.pitch <= events.highest)
        performance = performance.choose(playable)
        pitch = performance.pitch - events.lowest  # (N,)
        velocity_bin = (performance.velocity - 1) // VELOCITIES_PER_BIN  # (N,), from 0
        on, off = to_steps(performance)
        count = len(pitch)

        time = np.concatenate([off, on])  # (2N,)
        pitches = np.concatenate([pitch, pitch])
        is_on = np.repeat([False, True], count)
        order = np.lexsort((pitches, is_on, time))
        time, pitches, is_on = time[order], pitches[order], is_on[order]
        note_ids = np.where(is_on, events.note_on, events.note_off) + pitches

        bins = np.full(2 * count, -1, np.int64)
        bins[is_on] = velocity_bin[order[is_on] - count]
        changed = np.zeros(2 * count, bool)
        changed[is_on] = np.diff(bins[is_on], prepend=-1) != 0

        gap = np.diff(time, prepend=0)  # steps since the event before
        seconds, rest = gap // MAX_SHIFT, gap % MAX_SHIFT
        width = seconds + (rest > 0) + changed + 1  # ids of each note event: its pause, its velocity, itself
        last = np.cumsum(width) - 1  # the place of the note event
        ids = np.full(int(width.sum()), events.time_shift + MAX_SHIFT - 1, np.int64)  # whole seconds
        ids[last] = note_ids
        ids[last[changed] - 1] = events.velocity + bins[changed]
        paused = rest > 0
        ids[(last - changed - 1)[paused]] = events.time_shift + rest[paused] - 1
        return ids

    def decode(self, ids: Iterable[int]) -> Performance:
        """The notes that the events describe: any sequence of events has a meaning.

        A NOTE_OFF of a silent pitch is ignored, notes that still sound end with the last event, and a
        NOTE_ON before any VELOCITY is played at 64.
        """
        player = Player(self.vocabulary)
        for id in ids:
            player.push(int(id))
        return player.performance()


def to_steps(performance: Performance) -> tuple[Ids, Ids]:
    """When each note begins and ends, in steps of 10 ms."""
    on = np.rint(performance.start * STEPS_PER_SECOND).astype(np.int64)
    off = np.rint(performance.end * STEPS_PER_SECOND).astype(np.int64)
    short = off <= on  # shorter than a step: the step that it lies in, so that neither end moves by more
    on[short] = np.floor(performance.start[short] * STEPS_PER_SECOND).astype(np.int64)
    off[short] = on[short] + 1
    return on, off


class Player:
    """Plays events one by one: what time it is, which notes sound, which have ended.

    `now` is in steps of 10 ms. `hold` begins a note. A pitch may sound twice, for instance where two tracks
    were merged, unless `one_key`: then a key that is struck again ends its former note.
    """

    def __init__(self, vocabulary: EventVocabulary, now: int = 0, one_key: bool = False) -> None:
        self.vocabulary = vocabulary
        self.now = now
        self.one_key = one_key
        self.velocity = 64
        self.sounding: dict[int, deque[tuple[int, int]]] = {}  # pitch -> (onset, velocity) of its notes
        self.notes: list[tuple[int, int, int, int]] = []  # that have ended: onset, velocity, pitch, end

    def hold(self, pitch: int, start: int, velocity: int) -> None:
        self.sounding.setdefault(pitch, deque()).append((start, velocity))

    def push(self, id: int) -> None:
        events = self.vocabulary
        if not 0 <= id < events.size:
            raise SettingError(f"{id} is not the id of an event: they go from 0 to {events.size - 1}.")
        if id >= events.velocity:
            self.velocity = 1 + VELOCITIES_PER_BIN * (id - events.velocity)
        elif id >= events.time_shift:
            self.now += id - events.time_shift + 1
        elif id >= events.note_off:
            self.release(id - events.note_off + events.lowest)
        elif id >= events.note_on:
            pitch = id - events.note_on + events.lowest
            while self.one_key and pitch in self.sounding:
                self.release(pitch)
            self.hold(pitch, self.now, self.velocity)

    def release(self, pitch: int) -> None:
        """End the first of the notes of a pitch, if there is one."""
        notes = self.sounding.get(pitch)
        if notes:
            self.notes.append((*notes.popleft(), pitch, self.now))
            if not notes:
                del self.sounding[pitch]

    def performance(self) -> Performance:
        """All notes so far; those that still sound end now. Notes of no length are left out."""
        still = [(*note, pitch, self.now) for pitch, notes in self.sounding.items() for note in notes]
        start, velocity, pitch, end = np.array(self.notes + still, np.int64).reshape(-1, 4).T
        audible = end > start
        return Performance.from_notes(
            start[audible] / STEPS_PER_SECOND,
            end[audible] / STEPS_PER_SECOND,
            pitch[audible],
            velocity[audible],
        )
