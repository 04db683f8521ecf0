"""MIDI files <-> performances, through mido.

Types 0 and 1, with tempo changes. Each channel of a track is read as an instrument of its own (its notes,
its sustain pedal), then all are one piano. A NOTE_OFF of a silent pitch is ignored; of a pitch that sounds
twice the first note ends first; notes that are never ended end with the file. The sustain pedal (controller
64, down from 64 on) lets a note sound until the pedal is released or the same key is struck again.
"""

from __future__ import annotations

import io
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.files import file_size
from glassgpt.music.performance import Performance

if TYPE_CHECKING:
    import mido

MAX_BYTES = 16 << 20  # the largest file of MAESTRO has 400 kB
MAX_SECONDS = 24 * 3600.0
DRUMS = 9  # channel 10, counted from 0
SUSTAIN, PEDAL_DOWN = 64, 64
TICKS_PER_BEAT, TEMPO = 480, 500_000  # of the files we write: 480 ticks in half a second
TICKS_PER_SECOND = TICKS_PER_BEAT * 1_000_000 // TEMPO


def read_midi(path: str | Path, tracks: Iterable[str] | None = None) -> Performance:
    """The performance in a MIDI file; `tracks` are the names of those to play (all of them if left out)."""
    path = Path(path)
    if file_size(path) > MAX_BYTES:
        raise FileFormatError(
            f"{path} is larger than {MAX_BYTES >> 20} MiB: that is not a MIDI file of a performance."
        )
    file = parse(path)
    if file.type == 2:
        raise FileFormatError(
            f"{path} is a MIDI file of type 2 (independent patterns). Save it as type 0 or 1."
        )
    chosen = file.tracks if tracks is None else choose_tracks(path, file, list(tracks))
    seconds_at = tempo_map(file)
    columns: list[list[float]] = [[], [], [], []]
    for track in chosen:
        for note in notes_of(track):
            for column, value in zip(columns, note, strict=True):
                column.append(value)
    ticks = np.array(columns[:2], np.float64).reshape(2, -1)
    start, end = seconds_at(ticks[0]), seconds_at(ticks[1])
    if end.max(initial=0) > MAX_SECONDS:
        raise FileFormatError(
            f"{path} lasts {end.max() / 3600:,.0f} hours: it is damaged, or not a performance."
        )
    return Performance.from_notes(start, end, columns[2], columns[3])


def parse(path: Path) -> mido.MidiFile:
    mido = import_mido()
    try:
        # From memory: a file that lies about its lengths ends where its bytes do.
        return mido.MidiFile(file=io.BytesIO(path.read_bytes()))
    except OSError as error:
        if error.errno is not None:
            raise FileFormatError(f"{path} cannot be read ({error.strerror}). Check the file.") from None
        raise damaged(path, error) from None
    except (EOFError, ValueError, KeyError, IndexError, LookupError, TypeError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: BaseException) -> FileFormatError:
    return FileFormatError(
        f"{path} is not a MIDI file that can be read ({str(error) or type(error).__name__})."
    )


def import_mido() -> Any:
    try:
        import mido
    except ImportError:
        raise UserError("MIDI files need mido. Type: pip install 'glassgpt[music]'") from None
    return mido


def choose_tracks(path: Path, file: mido.MidiFile, names: list[str]) -> list[mido.MidiTrack]:
    there = [track.name for track in file.tracks]
    missing = [name for name in names if name not in there]
    if missing:
        raise SettingError(
            f"{path} has no track {missing[0]!r}. Its tracks are {', '.join(map(repr, there))}."
        )
    return [track for track in file.tracks if track.name in names]


def tempo_map(file: mido.MidiFile) -> Any:
    """A function from ticks (an array) to seconds, by the tempo changes of all tracks."""
    beat = file.ticks_per_beat
    if beat <= 0:  # SMPTE: frames per second (negative, in the high byte) times ticks per frame
        frames, per_frame = -(beat >> 8), beat & 0xFF
        if frames <= 0 or per_frame == 0:
            raise FileFormatError(f"{file.filename or 'the file'} has no time division. It is damaged.")
        return lambda ticks: ticks / (frames * per_frame)
    changes: dict[int, int] = {0: TEMPO}
    for track in file.tracks:
        tick = 0
        for message in track:
            tick += message.time
            if message.type == "set_tempo":
                changes[tick] = message.tempo
    ticks = np.array(sorted(changes), np.float64)
    rate = np.array([changes[int(tick)] for tick in ticks]) / 1e6 / beat  # seconds a tick, from there on
    seconds = np.concatenate([[0.0], np.cumsum(np.diff(ticks) * rate[:-1])])

    def to_seconds(at: np.ndarray) -> np.ndarray:
        index = np.searchsorted(ticks, at, side="right") - 1
        result: np.ndarray = seconds[index] + (at - ticks[index]) * rate[index]
        return result

    return to_seconds


def notes_of(track: mido.MidiTrack) -> Iterator[tuple[int, int, int, int]]:
    """(first tick, last tick, pitch, velocity) of every note of a track, as the pedal lets it sound."""
    held: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)  # keys that are down
    ringing: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # released, under the pedal
    pedal: set[int] = set()  # channels
    tick = 0
    for message in track:
        tick += message.time
        if message.is_meta or getattr(message, "channel", DRUMS) == DRUMS:
            continue
        channel = message.channel
        if message.type == "control_change" and message.control == SUSTAIN:
            if message.value >= PEDAL_DOWN:
                pedal.add(channel)
            elif channel in pedal:
                pedal.remove(channel)
                for key in [key for key in ringing if key[0] == channel]:
                    yield from ((begin, tick, key[1], loud) for begin, loud in ringing.pop(key))
        elif message.type == "note_on" and message.velocity > 0:
            key = (channel, message.note)
            yield from ((begin, tick, message.note, loud) for begin, loud in ringing.pop(key, ()))
            held[key].append((tick, message.velocity))
        elif message.type in ("note_on", "note_off"):
            key = (channel, message.note)
            if not held[key]:
                continue
            begin, loud = held[key].popleft()
            if channel in pedal:
                ringing[key].append((begin, loud))
            else:
                yield begin, tick, message.note, loud
    for keys in (held, ringing):
        for (_, pitch), notes in keys.items():
            yield from ((begin, tick, pitch, loud) for begin, loud in notes)


def write_midi(performance: Performance, path: str | Path) -> None:
    """Save a performance as a MIDI file of type 0, for a piano."""
    from glassgpt.files import atomic_write

    file = to_midi(performance)
    with atomic_write(Path(path)) as part:
        file.save(str(part))


def to_midi(performance: Performance) -> mido.MidiFile:
    mido = import_mido()
    on = np.rint(performance.start * TICKS_PER_SECOND).astype(np.int64)
    off = np.maximum(np.rint(performance.end * TICKS_PER_SECOND).astype(np.int64), on + 1)
    messages = [
        *((int(t), 0, int(p), 0) for t, p in zip(off, performance.pitch, strict=True)),
        *(
            (int(t), 1, int(p), int(v))
            for t, p, v in zip(on, performance.pitch, performance.velocity, strict=True)
        ),
    ]
    track = mido.MidiTrack(
        [mido.MetaMessage("set_tempo", tempo=TEMPO), mido.Message("program_change", program=0)]
    )
    tick = 0
    for time, is_on, pitch, velocity in sorted(messages):
        kind = "note_on" if is_on else "note_off"
        track.append(mido.Message(kind, note=pitch, velocity=velocity, time=time - tick))
        tick = time
    track.append(mido.MetaMessage("end_of_track"))
    return mido.MidiFile(type=0, ticks_per_beat=TICKS_PER_BEAT, tracks=[track])
