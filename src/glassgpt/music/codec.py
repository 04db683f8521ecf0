"""Performance <-> event ids.

    tokenizer = PerformanceTokenizer()
    ids = tokenizer.encode_file("sonata.mid")
    tokenizer.decode(ids).start

Times are rounded to steps of 10 ms from the beginning of the piece, so rounding errors do not add up. Of
what happens at the same step notes end before notes begin, low pitches first. VELOCITY comes just before
the first NOTE_ON that needs it, and only when its bin changes. A pause of more than a second is as many
whole seconds, then the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glassgpt.errors import SettingError
from glassgpt.music.events import (
    MAX_SHIFT,
    STEPS_PER_SECOND,
    VELOCITIES_PER_BIN,
    EventVocabulary,
    find_vocabulary,
)
from glassgpt.music.performance import Performance

Ids = npt.NDArray[np.int64]


class PerformanceTokenizer:
    """Turns performances and MIDI files into event ids and back. `events` is "performance" (the paper's 388
    events) or
    "magenta" (its 310)."""

    def __init__(self, events: str = "performance") -> None:
        self.vocabulary: EventVocabulary = find_vocabulary(events)

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    def encode_file(self, path: str | Path, tracks: Iterable[str] | None = None) -> list[int]:
        """The events of a MIDI file; of all its tracks, drums excepted, or of those named."""
        from glassgpt.music.midi import read_midi

        ids: list[int] = self.encode(read_midi(path, tracks)).tolist()
        return ids

    def encode(self, performance: Performance) -> Ids:
        """The event ids of a performance. Notes beyond the vocabulary's range of pitches are dropped."""
        events = self.vocabulary
        playable = (performance.pitch >= events.lowest) & (performance.pitch <= events.highest)
        pitch = performance.pitch[playable] - events.lowest  # (N,)
        velocity_bin = (performance.velocity[playable] - 1) // VELOCITIES_PER_BIN  # (N,), from 0
        on = np.rint(performance.start[playable] * STEPS_PER_SECOND).astype(np.int64)
        off = np.rint(performance.end[playable] * STEPS_PER_SECOND).astype(np.int64)
        short = off <= on  # shorter than a step: the step that it lies in, so that neither end moves by more
        on[short] = np.floor(performance.start[playable][short] * STEPS_PER_SECOND).astype(np.int64)
        off[short] = on[short] + 1
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
        width = seconds + (rest > 0) + changed + 1  # ids that each note event takes, itself included
        last = np.cumsum(width) - 1  # where it stands
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
        events = self.vocabulary
        sounding: dict[int, deque[tuple[int, int]]] = {}
        notes: list[tuple[int, int, int, int]] = []
        now, velocity = 0, 64
        for id in ids:
            if not 0 <= id < events.size:
                raise SettingError(f"{id} is not the id of an event: they go from 0 to {events.size - 1}.")
            if id >= events.velocity:
                velocity = 1 + VELOCITIES_PER_BIN * (id - events.velocity)
            elif id >= events.time_shift:
                now += id - events.time_shift + 1
            elif id >= events.note_off:
                pitch = id - events.note_off + events.lowest
                if sounding.get(pitch):
                    notes.append((*sounding[pitch].popleft(), pitch, now))
            elif id >= events.note_on:
                sounding.setdefault(id - events.note_on + events.lowest, deque()).append((now, velocity))
        for pitch, open_notes in sounding.items():
            notes += [(*note, pitch, now) for note in open_notes]
        table = np.array(notes, np.int64).reshape(-1, 4)
        start, velocities, pitches, end = table.T
        audible = end > start  # a note that ends when it begins is none
        return Performance.from_notes(
            start[audible] / STEPS_PER_SECOND,
            end[audible] / STEPS_PER_SECOND,
            pitches[audible],
            velocities[audible],
        )
