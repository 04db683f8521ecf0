"""MIDI files <-> performances.

Types 0 and 1, with tempo changes. Each channel of a track is read as a separate instrument (its notes,
its sustain pedal); then all are merged into one piano. A NOTE_OFF of a silent pitch is ignored; if a pitch
sounds twice, the first note ends first; notes without an end end with the track. The sustain pedal
(controller 64, down from 64 on) lets a note sound until the pedal is released or the key is struck again.

These rules need every message in its order, and all of MAESTRO needs speed, hence our own reader:
mido takes ten times as long for its objects, and symusic, ten times faster still, drops notes that are never
ended and loses the order of events at the same tick. The tests compare it with both.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import atomic_write, read_bytes
from glassgpt.music.performance import Performance

MAX_BYTES = 16 << 20  # the largest file of MAESTRO has 400 kB
MAX_SECONDS = 24 * 3600.0
DRUMS = 9  # channel 10, counted from 0
SUSTAIN, PEDAL_DOWN = 64, 64
TICKS_PER_BEAT, TEMPO = 480, 500_000  # of the files we write: 480 ticks in half a second
TICKS_PER_SECOND = TICKS_PER_BEAT * 1_000_000 // TEMPO

NOTE_OFF, NOTE_ON, CONTROL = 0x80, 0x90, 0xB0  # the high half of a status byte; the low one is the channel
SYSEX, SYSEX_MORE, META = 0xF0, 0xF7, 0xFF
TRACK_NAME, END_OF_TRACK, SET_TEMPO = 0x03, 0x2F, 0x51
DATA_BYTES = {0x80: 2, 0x90: 2, 0xA0: 2, 0xB0: 2, 0xC0: 1, 0xD0: 1, 0xE0: 2}

Message = tuple[int, int, int, int]  # tick, status, first and second data byte
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Track:
    """The messages of a track that matter here: notes, and the sustain pedal."""

    name: str
    messages: list[Message]
    tempi: list[tuple[int, int]]  # (tick, microseconds per beat)
    end: int  # tick


@dataclass(frozen=True)
class MidiFile:
    path: Path
    type: int
    division: int  # ticks per beat; negative: SMPTE
    tracks: list[Track]


class Damaged(Exception):
    """Why a file cannot be read."""


def read_midi(path: str | Path, tracks: Iterable[str] | None = None) -> Performance:
    """The performance in a MIDI file; `tracks` are the names of those to play (all of them if left out)."""
    file = read_file(Path(path))
    return play_tracks(file, file.tracks if tracks is None else choose_tracks(file, list(tracks)))


def read_melody(path: str | Path, melody: str) -> tuple[Performance, Performance]:
    """The notes of the track called `melody`, and those of all other tracks."""
    file = read_file(Path(path))
    chosen = choose_tracks(file, [melody])
    others = [track for track in file.tracks if track.name != melody]
    return play_tracks(file, chosen), play_tracks(file, others)


def parse_midi(data: bytes, name: str) -> Performance:
    """The performance in the bytes of a MIDI file, which errors call `name`."""
    file = check_file(Path(name), data)
    return play_tracks(file, file.tracks)


def read_file(path: Path) -> MidiFile:
    return check_file(path, read_bytes(path, MAX_BYTES))


def check_file(path: Path, data: bytes) -> MidiFile:
    """Parse the bytes of a file, and refuse one that cannot be played."""
    try:
        file = parse(path, data)
        TempoMap(file)
    except Damaged as error:
        raise FileFormatError(f"{path} is not a MIDI file that can be read ({error}).") from None
    if file.type == 2:
        raise FileFormatError(
            f"{path} is a MIDI file of type 2 (independent patterns). Save it as type 0 or 1."
        )
    return file


def play_tracks(file: MidiFile, tracks: Iterable[Track]) -> Performance:
    notes = [note for track in tracks for note in read_notes(track)]
    first, last, pitch, velocity = np.array(notes, np.int64).reshape(-1, 4).T
    tempo_map = TempoMap(file)
    start, end = tempo_map.seconds(first), tempo_map.seconds(last)
    if end.max(initial=0) > MAX_SECONDS:
        raise FileFormatError(
            f"{file.path} lasts {end.max() / 3600:,.0f} hours: it is damaged, or not a performance."
        )
    return Performance.from_notes(start, end, pitch, velocity)


def choose_tracks(file: MidiFile, names: list[str]) -> list[Track]:
    there = [track.name for track in file.tracks]
    missing = [name for name in names if name not in there]
    if missing:
        named = [repr(name) for name in there if name]
        tracks = f"Its tracks are {', '.join(named)}" if named else "Its tracks have no names"
        raise SettingError(f"{file.path} has no track {missing[0]!r}. {tracks}.")
    return [track for track in file.tracks if track.name in names]


def parse(path: Path, data: bytes) -> MidiFile:
    """The chunks of a file: its header and its tracks. Chunks of other kinds are passed over."""
    if data[:4] != b"MThd" or len(data) < 14:
        raise Damaged("it does not begin with MThd")
    kind, division = int.from_bytes(data[8:10], "big"), int.from_bytes(data[12:14], "big", signed=True)
    if kind > 2:
        raise Damaged(f"type {kind} does not exist")
    at, tracks = 8 + int.from_bytes(data[4:8], "big"), []
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        if at + 8 + size > len(data):
            raise Damaged(f"a chunk of {size:,} bytes ends after the file")
        if data[at : at + 4] == b"MTrk":
            try:
                tracks.append(parse_track(data[at + 8 : at + 8 + size]))
            except IndexError:
                raise Damaged("a track ends within a message") from None
        at += 8 + size
    if not tracks:
        raise Damaged("it has no tracks")
    return MidiFile(path, kind, division, tracks)


def parse_track(data: bytes) -> Track:
    """The messages of a track. Raises IndexError where its bytes end too early."""
    messages: list[Message] = []
    tempi: list[tuple[int, int]] = []
    name = ""
    at = tick = running = 0
    end = len(data)
    while at < end:
        delta = data[at]
        at += 1
        if delta >= 0x80:
            delta, at = read_number(data, at - 1)
        tick += delta
        status = data[at]
        if status >= 0x80:
            at += 1
            if status < SYSEX:
                running = status
        else:
            status = running
        kind = status & 0xF0
        if kind in (NOTE_ON, NOTE_OFF, CONTROL):
            first, second = data[at], data[at + 1]
            at += 2
            if (first | second) >= 0x80:
                raise Damaged("a status byte is in the place of data")
            if kind != CONTROL or first == SUSTAIN:
                messages.append((tick, status, first, second))
        elif kind in DATA_BYTES:
            at += DATA_BYTES[kind]
        elif status == META:
            what, (size, at) = data[at], read_number(data, at + 1)
            content = data[at : at + size]
            at += size
            if what == END_OF_TRACK:
                break
            if what == SET_TEMPO and size == 3:
                tempi.append((tick, int.from_bytes(content, "big")))
            elif what == TRACK_NAME:
                name = content.decode("latin-1")
        elif status in (SYSEX, SYSEX_MORE):
            size, at = read_number(data, at)
            at += size
        else:
            raise Damaged("a message has no status" if status == 0 else f"message {status:#x} does not exist")
    if at > end:
        raise IndexError
    return Track(name, messages, tempi, tick)


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length (at most four bytes of seven bits), and where it ends."""
    value = 0
    for _ in range(4):
        value = value << 7 | data[at] & 0x7F
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise Damaged("a number is longer than four bytes")


class TempoMap:
    """From ticks to seconds, by the tempo changes of all tracks."""

    def __init__(self, file: MidiFile) -> None:
        changes = {0: TEMPO}
        if file.division <= 0:  # SMPTE: frames per second (negative, in the high byte), ticks per frame
            frames, per_frame = -(file.division >> 8), file.division & 0xFF
            if frames <= 0 or per_frame == 0:
                raise Damaged("it has no time division")
            rates = [1 / (frames * per_frame)]
        else:
            changes.update(change for track in file.tracks for change in track.tempi)
            rates = [changes[tick] / 1e6 / file.division for tick in sorted(changes)]
        self.ticks: Floats = np.array(sorted(changes), np.float64)
        self.rates: Floats = np.array(rates)  # seconds a tick, from there on
        self.starts = np.concatenate([[0.0], np.cumsum(np.diff(self.ticks) * self.rates[:-1])])

    def seconds(self, ticks: npt.NDArray[np.int64]) -> Floats:
        index = np.searchsorted(self.ticks, ticks, side="right") - 1
        result: Floats = self.starts[index] + (ticks - self.ticks[index]) * self.rates[index]
        return result


def read_notes(track: Track) -> Iterator[tuple[int, int, int, int]]:
    """(first tick, last tick, pitch, velocity) of every note of a track, as the pedal lets it sound."""
    held: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)  # keys that are down
    ringing: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(dict)  # released, under the pedal
    pedal: set[int] = set()  # channels
    for tick, status, first, second in track.messages:
        channel, kind = status & 0x0F, status & 0xF0
        if channel == DRUMS:
            continue
        if kind == CONTROL:
            if second >= PEDAL_DOWN:
                pedal.add(channel)
            elif channel in pedal:
                pedal.remove(channel)
                for pitch, notes in ringing.pop(channel, {}).items():
                    yield from ((begin, tick, pitch, loud) for begin, loud in notes)
        elif kind == NOTE_ON and second > 0:
            yield from ((begin, tick, first, loud) for begin, loud in ringing[channel].pop(first, ()))
            held[channel, first].append((tick, second))
        elif held[channel, first]:
            begin, loud = held[channel, first].popleft()
            if channel in pedal:
                ringing[channel].setdefault(first, []).append((begin, loud))
            else:
                yield begin, tick, first, loud
    for (_, pitch), down in held.items():
        yield from ((begin, track.end, pitch, loud) for begin, loud in down)
    for keys in ringing.values():
        for pitch, notes in keys.items():
            yield from ((begin, track.end, pitch, loud) for begin, loud in notes)


def write_midi(performance: Performance, path: str | Path, seconds: float | None = None) -> None:
    """Save a performance as a MIDI file of type 0, for a piano; by default it ends with its last note."""
    data = to_midi(performance, seconds)
    with atomic_write(Path(path)) as part:
        part.write_bytes(data)


def to_midi(performance: Performance, seconds: float | None = None) -> bytes:
    """A performance as the bytes of a MIDI file, which ends with its last note, or after `seconds`."""
    on = np.rint(performance.start * TICKS_PER_SECOND).astype(np.int64)
    off = np.maximum(np.rint(performance.end * TICKS_PER_SECOND).astype(np.int64), on + 1)
    rows = zip(
        on.tolist(), off.tolist(), performance.pitch.tolist(), performance.velocity.tolist(), strict=True
    )
    messages = sorted(
        message
        for first, last, pitch, velocity in rows
        for message in ((last, NOTE_OFF, pitch, 0), (first, NOTE_ON, pitch, velocity))
    )
    track = bytearray(b"\0\xff\x51\x03" + TEMPO.to_bytes(3, "big") + b"\0\xc0\0")  # tempo; program 0: piano
    tick = 0
    for time, status, pitch, velocity in messages:
        track += write_number(time - tick) + bytes((status, pitch, velocity))
        tick = time
    end = tick if seconds is None else max(tick, round(seconds * TICKS_PER_SECOND))
    track += write_number(end - tick) + b"\xff\x2f\0"
    header = b"MThd" + (6).to_bytes(4, "big") + b"\0\0\0\1" + TICKS_PER_BEAT.to_bytes(2, "big")
    return header + b"MTrk" + len(track).to_bytes(4, "big") + bytes(track)


def write_number(value: int) -> bytes:
    """In groups of seven bits, the highest first; all but the last have the eighth bit set."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))
