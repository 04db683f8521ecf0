"""A second MIDI reader, on top of mido's parser and in another manner: what `read_midi` is compared with.

For each channel of a track it pairs the notes first, and then lengthens every note that ends while the pedal
is down: to the pedal's release, or to the next onset of its pitch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import mido

from glassgpt.music import Performance

Timed = list[tuple[int, mido.Message]]


def read_with_mido(path: Path) -> Performance:
    file = mido.MidiFile(path)
    tempi = {0: 500_000}
    for track in file.tracks:
        tempi.update((tick, message.tempo) for tick, message in timed(track) if message.type == "set_tempo")
    changes = sorted(tempi.items())
    rows = [
        (seconds(first, changes, file), seconds(last, changes, file), pitch, velocity)
        for track in file.tracks
        for first, last, pitch, velocity in track_notes(timed(track))
    ]
    return Performance.from_notes(*(zip(*rows, strict=True) if rows else ((), (), (), ())))


def timed(track: mido.MidiTrack) -> Timed:
    tick, found = 0, []
    for message in track:
        tick += message.time
        found.append((tick, message))
    return found


def seconds(tick: int, changes: list[tuple[int, int]], file: mido.MidiFile) -> float:
    total = 0.0
    for (start, tempo), (stop, _) in zip(changes, [*changes[1:], (tick, 0)], strict=True):
        if start < tick:
            total += mido.tick2second(min(stop, tick) - start, file.ticks_per_beat, tempo)
    return total


def track_notes(track: Timed) -> Iterator[tuple[int, int, int, int]]:
    channels = defaultdict(list)
    for place, (tick, message) in enumerate(track):
        if not message.is_meta and hasattr(message, "channel") and message.channel != 9:
            channels[message.channel].append((place, tick, message))
    end = (len(track), track[-1][0] if track else 0)
    for messages in channels.values():
        releases, is_down = pedal(messages)
        onsets = defaultdict(list)
        for place, tick, message in messages:
            if message.type == "note_on" and message.velocity:
                onsets[message.note].append((place, tick))
        for first, last, pitch, velocity in pair(messages, end):
            if last != end and is_down(last[0]):
                later = [
                    places[at] for places in (releases, onsets[pitch])
                    if (at := bisect_right(places, last)) < len(places)
                ]  # fmt: skip
                last = min([*later, end])
            yield first[1], last[1], pitch, velocity


def pedal(messages: list) -> tuple:
    """Where the pedal is released, and whether it is down at a place of the track."""
    down, releases, states = False, [], [(-1, False)]
    for place, tick, message in messages:
        if message.type == "control_change" and message.control == 64:
            if down and message.value < 64:
                releases.append((place, tick))
            down = message.value >= 64
            states.append((place, down))
    return releases, lambda place: states[bisect_right(states, (place, True)) - 1][1]


def pair(messages: list, end: tuple[int, int]) -> Iterator[tuple]:
    """Onset and key release of each note, as (place, tick), first in, first out."""
    keys = defaultdict(list)
    for place, tick, message in messages:
        if message.type == "note_on" and message.velocity:
            keys[message.note].append(((place, tick), message.velocity))
        elif message.type in ("note_on", "note_off") and keys[message.note]:
            first, velocity = keys[message.note].pop(0)
            yield first, (place, tick), message.note, velocity
    for pitch, notes in keys.items():
        yield from ((first, end, pitch, velocity) for first, velocity in notes)
