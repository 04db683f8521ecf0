"""Tokenizers of music: an id is an event, its text is the event's name ("NOTE_ON_60 TIME_SHIFT_50").

Oore et al. (2018), "This Time with Feeling", and the Music Transformer (Huang et al., 2018) write a piano
performance as a sequence of 388 events: 128 NOTE_ON, 128 NOTE_OFF, 100 TIME_SHIFT (10 ms to 1 s) and 32
VELOCITY. Magenta's own models have 310: the 88 keys of a piano, and two reserved ids in front. What MIDI
files have to do with it is in `glassgpt.music`; here events are no more than names, so that a model of music
trains, generates and is traced like any other.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from glassgpt.errors import FileFormatError, SettingError, short_repr
from glassgpt.tokenizer.base import Tokenizer, lookup_token
from glassgpt.tokenizer.char_level import OUR_KEY
from glassgpt.tokenizer.pre_tokenizer import END_OF_TEXT

STEPS_PER_SECOND = 100
MAX_SHIFT = 100  # steps in one TIME_SHIFT: one second
VELOCITY_BINS = 32
VELOCITIES_PER_BIN = 4
PITCHES = 128
MELODY, ACCOMPANIMENT = "MELODY", "ACCOMPANIMENT"  # whose events follow


@dataclass(frozen=True)
class EventVocabulary:
    """The events and their ids. Kinds of events follow one another in the order of the fields here."""

    name: str
    lowest: int = 0  # pitch
    highest: int = PITCHES - 1
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


class NamedTokenizer(Tokenizer):
    """Tokens with names, which a text separates by spaces; the first id after the events is
    `<|endoftext|>`."""

    def __init__(self, names: tuple[str, ...], events: int) -> None:
        self.names = names
        self.eot_id: int = events
        self._ids = {name: i for i, name in enumerate(names)}
        self._tokens = [f" {name}".encode() for name in names]

    @property
    def vocab_size(self) -> int:
        return len(self.names)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        ids = []
        for name in text.split():
            token_id = self._ids.get(name)
            if token_id is None or (token_id == self.eot_id and not allow_special):
                raise SettingError(
                    f"{name!r} is not an event of this vocabulary. Its events are {self.names[0]}, "
                    f"{self.names[1]}, ..., {self.names[self.eot_id - 1]}; spaces separate them."
                )
            ids.append(token_id)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return lookup_token(self, token_id, self._tokens)

    @abstractmethod
    def pitch_ranges(self) -> list[range]:
        """The ids that stand for pitches in ascending order: what transposition moves."""

    def transpositions(self, semitones: int) -> npt.NDArray[np.int64]:
        """The id that each id becomes, for -semitones to +semitones: (2 * semitones + 1, V).

        A pitch that would leave the vocabulary moves an octave back.
        """
        table = np.tile(np.arange(self.vocab_size), (2 * semitones + 1, 1))
        for row, shift in zip(table, range(-semitones, semitones + 1), strict=True):
            for ids in self.pitch_ranges():
                moved = np.arange(len(ids)) + shift
                moved[moved < 0] += 12
                moved[moved >= len(ids)] -= 12
                row[ids.start : ids.stop] = ids.start + moved
        return table


class EventTokenizer(NamedTokenizer):
    """The events of a performance, then `<|endoftext|>`: 389 tokens.

    `events` is "performance" or "magenta". With `melody`, MELODY and ACCOMPANIMENT follow: they stand before
    events of the one or the other (see `glassgpt.music.interleave`).
    """

    kind: ClassVar[str] = "performance"

    def __init__(self, events: str = "performance", melody: bool = False) -> None:
        self.events = find_vocabulary(events)
        self.melody = melody
        roles = (MELODY, ACCOMPANIMENT) if melody else ()
        super().__init__((*self.events.names, END_OF_TEXT, *roles), self.events.size)

    def pitch_ranges(self) -> list[range]:
        events = self.events
        return [range(first, first + events.pitches) for first in (events.note_on, events.note_off)]

    def files(self) -> dict[str, str]:
        content = {"version": "1.0", OUR_KEY: self.kind, "events": self.events.name, "melody": self.melody}
        return {"tokenizer.json": json.dumps(content) + "\n"}

    def vocabulary(self) -> object:
        return list(self.names)


class ChoraleTokenizer(NamedTokenizer):
    """Four voices on a grid of sixteenths, soprano to bass, then the next sixteenth: an id is a pitch."""

    kind: ClassVar[str] = "chorale"

    def __init__(self) -> None:
        pitches = tuple(f"PITCH_{pitch}" for pitch in range(PITCHES))
        super().__init__((*pitches, "REST", END_OF_TEXT), PITCHES + 1)

    def pitch_ranges(self) -> list[range]:
        return [range(PITCHES)]

    def files(self) -> dict[str, str]:
        return {"tokenizer.json": json.dumps({"version": "1.0", OUR_KEY: self.kind}) + "\n"}

    def vocabulary(self) -> object:
        return list(self.names)


KINDS = (EventTokenizer.kind, ChoraleTokenizer.kind)


def read_events(path: Path, data: dict[str, Any]) -> Tokenizer:
    """A tokenizer of music from the small JSON that `save` wrote."""
    if data[OUR_KEY] == ChoraleTokenizer.kind:
        return ChoraleTokenizer()
    events, melody = data.get("events"), data.get("melody", False)
    if events not in VOCABULARIES or not isinstance(melody, bool):
        raise FileFormatError(
            f"{path}: events is {short_repr(events)} and melody {short_repr(melody)}; events are one of "
            f"{', '.join(VOCABULARIES)}, and melody is true or false"
        )
    return EventTokenizer(events, melody)
