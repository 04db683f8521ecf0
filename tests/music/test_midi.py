"""MIDI files: what a pianist meant by them, and files that are not what they say."""

from __future__ import annotations

import io
import random
import tempfile
from pathlib import Path

import mido
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.music import Performance, PerformanceTokenizer
from glassgpt.music.midi import MAX_SECONDS, read_midi, to_midi, write_midi
from tests.music.mido_reader import read_with_mido
from tests.music.test_codec import ARTICLE, ARTICLE_IDS


def midi(path: Path, *tracks: list[mido.Message | mido.MetaMessage], type: int = 1, beat: int = 500) -> Path:
    """A file whose ticks are milliseconds, unless its tempo changes."""
    file = mido.MidiFile(type=type, ticks_per_beat=beat, tracks=[mido.MidiTrack(track) for track in tracks])
    file.save(path)
    return path


def on(note: int, time: int = 0, velocity: int = 80, channel: int = 0) -> mido.Message:
    return mido.Message("note_on", note=note, velocity=velocity, time=time, channel=channel)


def off(note: int, time: int = 0, channel: int = 0) -> mido.Message:
    return mido.Message("note_off", note=note, time=time, channel=channel)


def pedal(value: int, time: int = 0, channel: int = 0) -> mido.Message:
    return mido.Message("control_change", control=64, value=value, time=time, channel=channel)


def notes(performance: Performance) -> list[tuple[int, float, float]]:
    rows = zip(performance.pitch, performance.start, performance.end, strict=True)
    return [(int(pitch), round(float(a), 6), round(float(b), 6)) for pitch, a, b in rows]


def test_a_file_is_encoded(tmp_path: Path) -> None:
    write_midi(ARTICLE, tmp_path / "a.mid")
    assert PerformanceTokenizer().encode_file(tmp_path / "a.mid") == ARTICLE_IDS


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([on(60), off(60, 1000)], [(60, 0, 1)]),
        ([on(60), on(60, 1000, velocity=0)], [(60, 0, 1)]),  # velocity 0 ends a note
        ([off(60, 500), on(60, 500), off(60, 500)], [(60, 1, 1.5)]),  # an end of nothing is ignored
        (
            [on(60), on(60, 500), off(60, 500), off(60, 500)],
            [(60, 0, 1), (60, 0.5, 1.5)],
        ),  # first in, first out
        ([on(60), off(62, 700)], [(60, 0, 0.7)]),  # never ended: with the file
        ([pedal(64), on(60), off(60, 100), pedal(63, 900)], [(60, 0, 1)]),  # until the release
        (
            [pedal(127), on(60), off(60, 100), on(60, 400), off(60, 100), pedal(0, 400)],
            [(60, 0, 0.5), (60, 0.5, 1)],
        ),
        ([pedal(63), on(60), off(60, 100), pedal(0, 900)], [(60, 0, 0.1)]),  # not down
        (
            [on(60), pedal(127, 100), off(60, 100), pedal(0, 800)],
            [(60, 0, 1)],
        ),  # pressed while the key is down
        ([on(60), pedal(127, 100), pedal(0, 100), off(60, 800)], [(60, 0, 1)]),  # the key is held longer
        (
            [pedal(127, channel=1), on(60), off(60, 100), pedal(0, 900, channel=1)],
            [(60, 0, 0.1)],
        ),  # not its pedal
        ([on(60, channel=9), off(60, 1000, channel=9)], []),  # drums
    ],
)
def test_what_messages_mean(
    messages: list[mido.Message], wanted: list[tuple[int, float, float]], tmp_path: Path
) -> None:
    assert notes(read_midi(midi(tmp_path / "a.mid", messages, type=0))) == wanted


def test_tempo_changes_hold_for_all_tracks(tmp_path: Path) -> None:
    slower = [
        mido.MetaMessage("set_tempo", tempo=500_000),
        mido.MetaMessage("set_tempo", tempo=1_000_000, time=1000),
    ]
    path = midi(tmp_path / "a.mid", slower, [on(60, 500), off(60, 1000)])
    assert notes(read_midi(path)) == [(60, 0.5, 2.0)]


def test_tracks_are_merged_or_chosen(tmp_path: Path) -> None:
    named = [
        [mido.MetaMessage("track_name", name=n), on(p), off(p, 1000)]
        for n, p in (("MELODY", 72), ("PIANO", 48))
    ]
    path = midi(tmp_path / "a.mid", *named)
    assert notes(read_midi(path)) == [(48, 0, 1), (72, 0, 1)]
    assert notes(read_midi(path, tracks=["MELODY"])) == [(72, 0, 1)]
    with pytest.raises(SettingError, match=r"no track 'VOICE'\. Its tracks are 'MELODY', 'PIANO'"):
        read_midi(path, tracks=["VOICE"])


def test_what_is_written_is_read_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    start = np.sort(rng.uniform(0, 60, 500))
    made = Performance.from_notes(
        start, start + rng.uniform(0.05, 2, 500), rng.integers(21, 109, 500), rng.integers(1, 128, 500)
    )
    write_midi(made, tmp_path / "a.mid")
    read = read_midi(tmp_path / "a.mid")
    assert abs(read.start - made.start).max() < 0.0011
    assert abs(read.end - made.end).max() < 0.0011
    assert (read.pitch == made.pitch).all()
    assert (read.velocity == made.velocity).all()


def test_type_two_and_things_that_are_not_midi(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="type 2"):
        read_midi(midi(tmp_path / "two.mid", [on(60), off(60, 10)], type=2))
    (tmp_path / "text.mid").write_text("not music")
    with pytest.raises(FileFormatError, match=r"text\.mid is not a MIDI file"):
        read_midi(tmp_path / "text.mid")
    with pytest.raises(FileFormatError, match="does not exist"):
        read_midi(tmp_path / "none.mid")
    path = midi(
        tmp_path / "long.mid", [on(60), mido.MetaMessage("set_tempo", tempo=2**24 - 1), off(60, 2**28 - 1)]
    )
    with pytest.raises(FileFormatError, match="hours"):
        read_midi(path)


@pytest.mark.slow
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    """2,000 of them: never anything but a performance or a clear error, and no more work than the bytes say.

    recipes/music/mutate.py does it with real files, and reports the time.
    """
    rng = random.Random(0)
    messages = [m for p in range(60, 72) for m in (pedal(rng.choice((0, 127)), 10), on(p, 20), off(p, 300))]
    data = midi(tmp_path / "a.mid", [mido.MetaMessage("set_tempo", tempo=400_000)], messages).read_bytes()
    path, read = tmp_path / "b.mid", 0
    for _ in range(2000):
        mutated = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            kind, at = rng.random(), rng.randrange(len(mutated))
            if kind < 0.6:
                mutated[at] = rng.randrange(256)
            elif kind < 0.8:
                del mutated[at : at + rng.randint(1, 20)]
            else:
                mutated[at:at] = rng.randbytes(rng.randint(1, 20))
            if not mutated:
                mutated = bytearray(b"\0")
        path.write_bytes(mutated)
        try:
            performance = read_midi(path)
        except UserError:
            continue
        ids = PerformanceTokenizer().encode(performance)
        assert len(performance) <= len(mutated) // 2  # a note has a time and a message
        assert len(ids) <= 6 * len(performance) + MAX_SECONDS  # two of each event, and a shift each second
        read += 1
    assert read > 200  # not all mutations are gross


def test_a_midi_file_of_a_performance_is_for_a_piano() -> None:
    track = mido.MidiFile(file=io.BytesIO(to_midi(ARTICLE))).tracks[0]
    assert [m.program for m in track if m.type == "program_change"] == [0]
    assert track[-1].type == "end_of_track"
    assert mido.MidiFile(file=io.BytesIO(to_midi(ARTICLE))).length == pytest.approx(3.0)
    assert mido.MidiFile(file=io.BytesIO(to_midi(ARTICLE, seconds=7.5))).length == pytest.approx(7.5)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_messages_mean_what_a_second_reader_says(data: st.DataObject) -> None:
    """Notes, pedals and tempo changes in any order, at one tick or another, in two tracks and channels."""
    waits = st.sampled_from([0, 0, 7, 100])
    message = st.one_of(
        st.builds(on, st.integers(60, 62), waits, st.integers(0, 127), st.integers(0, 1)),
        st.builds(off, st.integers(60, 62), waits, st.integers(0, 1)),
        st.builds(pedal, st.sampled_from([0, 63, 64, 127]), st.sampled_from([0, 5, 50]), st.integers(0, 1)),
        st.builds(
            lambda tempo, time: mido.MetaMessage("set_tempo", tempo=tempo, time=time),
            st.integers(1, 2**24 - 1), st.integers(0, 50),
        ),
    )  # fmt: skip
    tracks = data.draw(st.lists(st.lists(message, max_size=30), min_size=1, max_size=2))
    with tempfile.TemporaryDirectory() as folder:
        path = midi(Path(folder) / "a.mid", *tracks)
        found, wanted = read_midi(path), read_with_mido(path)
    assert found.pitch.tolist() == wanted.pitch.tolist()
    assert np.allclose(found.start, wanted.start)
    assert np.allclose(found.end, wanted.end)
    # Two strokes of one key at one moment (on two channels) have no order: the files do not say it.
    notes = [sorted(zip(p.start.round(6), p.pitch, p.velocity, strict=True)) for p in (found, wanted)]
    assert notes[0] == notes[1]
