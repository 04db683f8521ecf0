"""What is heard and seen: pitches in the spectrum, loudness, files that other programs open, the roll."""

from __future__ import annotations

import stat
import wave
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from glassgpt.errors import SettingError, UserError
from glassgpt.music import Performance
from glassgpt.music.roll import AttentionArc, draw_roll
from glassgpt.music.sound.render import find_soundfont, play, render
from glassgpt.music.sound.synth import SAMPLE_RATE, PianoString, frequency, synthesize, synthesize_note
from glassgpt.progress import Advance
from tests.music.test_codec import ARTICLE

SCALE = [48, 50, 52, 53, 55, 57, 59, 60, 72, 84, 96]
SCALE_PERFORMANCE = Performance.from_notes(
    range(len(SCALE)), np.arange(len(SCALE)) + 0.9, SCALE, [80] * len(SCALE)
)


def strongest_frequency(sound: np.ndarray) -> float:
    spectrum = abs(np.fft.rfft(sound * np.hanning(len(sound)), 1 << 17))
    return float(spectrum.argmax() * SAMPLE_RATE / (1 << 17))


def samples_of(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert file.getframerate() == SAMPLE_RATE
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64) / 32768
        return data.reshape(-1, file.getnchannels()).mean(axis=1)


def assert_scale(sound: np.ndarray) -> None:
    for i, pitch in enumerate(SCALE):
        note = sound[int((i + 0.05) * SAMPLE_RATE) : int((i + 0.85) * SAMPLE_RATE)]
        assert strongest_frequency(note) == pytest.approx(frequency(pitch), rel=0.01), pitch


def test_a_above_middle_c() -> None:
    assert frequency(69) == 440
    assert frequency(60) == pytest.approx(261.6256, abs=1e-4)


def test_a_note_is_computed_until_it_has_faded() -> None:
    short, long = (synthesize_note(60, 80, seconds) for seconds in (30.0, 3600.0))
    assert len(short) == len(long) < 20 * SAMPLE_RATE
    assert abs(long[-SAMPLE_RATE:]).max() < 0.001 * abs(long).max()


def test_a_scale_has_the_right_pitches(tmp_path: Path) -> None:
    assert render(SCALE_PERFORMANCE, tmp_path / "scale.wav", "builtin") == "builtin"
    assert_scale(samples_of(tmp_path / "scale.wav"))


def test_a_scale_of_fluidsynth(tmp_path: Path) -> None:
    try:
        render(SCALE_PERFORMANCE, tmp_path / "scale.wav", "fluidsynth")
    except UserError as error:
        pytest.skip(str(error))
    sound = samples_of(tmp_path / "scale.wav")
    # The strongest partial of a recorded low note may be its second: any whole multiple will do.
    for i, pitch in enumerate(SCALE):
        note = sound[int((i + 0.1) * SAMPLE_RATE) : int((i + 0.85) * SAMPLE_RATE)]
        ratio = strongest_frequency(note) / frequency(pitch)
        assert ratio == pytest.approx(round(ratio), rel=0.01)


def test_louder_where_velocity_is_higher() -> None:
    energies = []
    for velocity in (1, 20, 60, 100, 127):
        sound = synthesize(Performance.from_notes([0], [0.5], [60], [velocity]))
        energies.append(float((sound.astype(np.float64) ** 2).sum()))
    assert energies == sorted(energies)
    assert energies[-1] > 100 * energies[0]


def test_a_note_ends_when_it_is_released() -> None:
    sound = synthesize(Performance.from_notes([0, 2], [0.5, 2.1], [60, 60], [100, 100]))
    held, gone = sound[int(0.3 * SAMPLE_RATE) :][:4410], sound[int(0.8 * SAMPLE_RATE) :][:4410]
    assert abs(gone).max() < 0.01 * abs(held).max()


def test_chords_do_not_clip() -> None:
    pitches = list(range(40, 100))
    sound = synthesize(Performance.from_notes([0] * 60, [1] * 60, pitches, [127] * 60))
    assert abs(sound).max() == pytest.approx(1, abs=1e-6)
    assert len(synthesize(Performance.from_notes([], [], [], []))) > 0


def test_progress_is_a_step_for_each_note() -> None:
    steps: list[int] = []

    @contextmanager
    def progress(description: str, total: int | None = None, *, unit: str = "") -> Iterator[Advance]:
        assert (description, total, unit) == ("rendering", len(SCALE), "notes")
        yield steps.append

    with_progress = synthesize(SCALE_PERFORMANCE, progress=progress)
    assert steps == [1] * len(SCALE)
    np.testing.assert_array_equal(with_progress, synthesize(SCALE_PERFORMANCE))


def test_notes_at_one_moment_are_one_stroke(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 100,000 notes at one tick took most of a minute."""
    struck: list[int] = []
    play_one = PianoString.play

    def play_and_count(self: PianoString, velocity: int, seconds: float) -> np.ndarray:
        struck.append(velocity)
        return play_one(self, velocity, seconds)

    monkeypatch.setattr(PianoString, "play", play_and_count)
    many = 5_000
    pitches, velocities = np.arange(many) % 4 + 60, np.arange(many) % 91 + 10
    steps: list[int] = []

    @contextmanager
    def progress(description: str, total: int | None = None, *, unit: str = "") -> Iterator[Advance]:
        yield steps.append

    synthesize(Performance.from_notes([0.25] * many, [0.5] * many, pitches, velocities), progress=progress)
    assert struck == [100] * 4
    assert sum(steps) == many


def test_a_string_that_is_struck_again_sounds_once() -> None:
    """However long its first note is held."""
    held = synthesize(Performance.from_notes([0, 1], [9, 2], [60, 60], [80, 90]))
    again = held[SAMPLE_RATE + 4410 : SAMPLE_RATE + 8820].astype(np.float64)
    alone = synthesize_note(60, 90, 8.0)[4410:8820]
    left = synthesize_note(60, 80, 1.0)[SAMPLE_RATE + 4410 :][:4410]
    assert abs(again - alone).max() <= abs(left).max() + 1e-3 < 0.02


def test_what_cannot_be_rendered_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"a\.flac must end in \.wav, \.ogg or \.mp3"):
        render(ARTICLE, tmp_path / "a.flac")
    with pytest.raises(SettingError, match="synthesizer 'moog' is not one of"):
        render(ARTICLE, tmp_path / "a.wav", "moog")
    with pytest.raises(SettingError, match=r"soundfont none\.sf2 does not exist"):
        find_soundfont("none.sf2")
    with pytest.raises(SettingError, match="120 minutes are too long"):
        render(Performance.from_notes([0], [7200], [60], [64]), tmp_path / "a.wav")
    monkeypatch.setattr("glassgpt.music.sound.render.MAX_NOTES", 2)
    with pytest.raises(SettingError, match=r"^3 notes are too many to render\. The most is 2\.$"):
        render(Performance.from_notes([0] * 3, [1] * 3, [60, 62, 64], [64] * 3), tmp_path / "a.wav")
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="neither oggenc nor ffmpeg is installed"):
        render(ARTICLE, tmp_path / "a.ogg")
    with pytest.raises(UserError, match="fluidsynth is not installed"):
        render(ARTICLE, tmp_path / "a.wav", "fluidsynth")
    with pytest.raises(UserError, match="no player was found"):
        play(tmp_path / "a.wav")
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "oggenc"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no such codec' >&2\nexit 3\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    with pytest.raises(UserError, match=r"oggenc failed \(exit code 3\): no such codec"):
        render(ARTICLE, tmp_path / "a.ogg", "builtin")
    assert not (tmp_path / "a.ogg").exists()
    program.write_text('#!/bin/sh\ncp "$4" "$3"\n')  # oggenc -Q -o OUT WAV
    render(ARTICLE, tmp_path / "a.ogg", "builtin")
    assert (tmp_path / "a.ogg").read_bytes()[:4] == b"RIFF"


def test_the_roll_shows_every_note_and_arc() -> None:
    arcs = [AttentionArc(0, 2.5, 65, 0, 60, 0.9), AttentionArc(1, 2.5, 65, 1, 67, 0.1)]
    svg = draw_roll(ARTICLE, "C & E", arcs=arcs, primer_seconds=1).to_svg()
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{space}title") == "C & E"
    notes = [r for r in root.iter(f"{space}rect") if r.get("fill-opacity")]
    assert [r.get("fill") for r in notes] == ["#888888", "#888888", "#1b6ca8", "#1b6ca8"]
    lefts = [float(r.get("x") or 0) for r in notes]
    assert lefts == sorted(lefts)
    widths = [float(p.get("stroke-width") or 0) for p in root.iter(f"{space}path")]
    assert widths == [5.0, 1.0]
    assert "svg" in draw_roll(Performance.from_notes([], [], [], [])).to_svg()
