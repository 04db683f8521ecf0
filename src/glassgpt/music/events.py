"""The alphabet of a performance: note on, note off, time shift, velocity.

Oore et al. (2018), "This Time with Feeling", and the Music Transformer (Huang et al., 2018) write a piano
performance as a sequence of 388 events: 128 NOTE_ON, 128 NOTE_OFF, 100 TIME_SHIFT (10 ms to 1 s) and 32
VELOCITY. Magenta's own models have 310: the 88 keys of a piano, and two reserved ids in front.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from glassgpt.errors import SettingError

STEPS_PER_SECOND = 100
MAX_SHIFT = 100  # steps in one TIME_SHIFT: one second
VELOCITY_BINS = 32
VELOCITIES_PER_BIN = 4


@dataclass(frozen=True)
class EventVocabulary:
    """Which id stands for which event. The kinds lie one after the other, in the order of the fields here."""

    name: str
    lowest: int = 0  # pitch
    highest: int = 127
    reserved: int = 0  # ids in front that are not events

    @property
    def pitches(self) -> int:
        return self.highest - self.lowest + 1

    @property
    def note_on(self) -> int:
        return self.reserved

    @property
    def note_off(self) -> int:
        return self.note_on + self.pitches

    @property
    def time_shift(self) -> int:
        return self.note_off + self.pitches

    @property
    def velocity(self) -> int:
        return self.time_shift + MAX_SHIFT

    @property
    def size(self) -> int:
        return self.velocity + VELOCITY_BINS

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each id stands for, in words: NOTE_ON_60, TIME_SHIFT_50 (half a second), VELOCITY_20."""
        pitches = range(self.lowest, self.highest + 1)
        return (
            *(f"RESERVED_{i}" for i in range(self.reserved)),
            *(f"NOTE_ON_{pitch}" for pitch in pitches),
            *(f"NOTE_OFF_{pitch}" for pitch in pitches),
            *(f"TIME_SHIFT_{steps}" for steps in range(1, MAX_SHIFT + 1)),
            *(f"VELOCITY_{bin}" for bin in range(1, VELOCITY_BINS + 1)),
        )


PERFORMANCE = EventVocabulary("performance")
MAGENTA = EventVocabulary("magenta", lowest=21, highest=108, reserved=2)
VOCABULARIES = {vocabulary.name: vocabulary for vocabulary in (PERFORMANCE, MAGENTA)}


def find_vocabulary(name: str) -> EventVocabulary:
    if name not in VOCABULARIES:
        raise SettingError(f"event vocabulary {name!r} is not one of {', '.join(VOCABULARIES)}.")
    return VOCABULARIES[name]
