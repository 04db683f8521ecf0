"""A small piano in numpy, so that every machine can play: harmonics that decay.

A struck string sounds at whole multiples of its frequency. The harder it is struck, the louder it is and the
stronger its high harmonics are; high strings, and high harmonics of any string, fade sooner; when the damper
falls back, the rest is gone within a tenth of a second. For the sound of a real piano see render.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from glassgpt.music.performance import Floats, Ints, Performance
from glassgpt.progress import Progress, no_progress

SAMPLE_RATE = 44_100
HARMONICS = 8
ATTACK = 0.004  # seconds: the hammer
RELEASE = 0.08  # seconds in which a damped string loses most of its sound
TAIL = 0.3  # seconds after the last note's end
FADED = 7.0  # lifetimes after which a string is silent: e^-7 is -60 dB
LOUDNESS = 0.25  # of one note at full velocity, of the largest amplitude; chords add up

Samples = npt.NDArray[np.float32]


def frequency(pitch: int) -> float:
    """In hertz, in equal temperament: A above middle C, pitch 69, has 440."""
    return float(440.0 * 2 ** ((pitch - 69) / 12))


def synthesize(
    performance: Performance, sample_rate: int = SAMPLE_RATE, progress: Progress = no_progress
) -> Samples:
    """Mono sound of the performance, between -1 and 1.

    A piano has one string for a pitch: what it sounded ends when it is struck again, and of strokes at the
    same moment the loudest is heard. So the work does not grow with the number of notes that overlap.
    """
    sound = np.zeros(int((performance.seconds + TAIL) * sample_rate) + 1, np.float32)
    with progress("rendering", len(performance.start), unit="notes") as advance:
        for pitch in np.unique(performance.pitch).tolist():
            notes = performance.choose(performance.pitch == pitch)
            first, velocity, seconds = (each.tolist() for each in strokes(notes, sample_rate))
            string = PianoString(pitch, max(seconds), sample_rate)
            for start, loudness, held in zip(first, velocity, seconds, strict=True):
                note = string.play(loudness, held)
                sound[start : start + len(note)] += note[: len(sound) - start]
                advance(1)
            if len(first) < len(notes):
                advance(len(notes) - len(first))
    loudest = float(abs(sound).max(initial=0.0))
    return sound if loudest <= 1 else sound / np.float32(loudest)


def strokes(notes: Performance, sample_rate: int = SAMPLE_RATE) -> tuple[Ints, Ints, Floats]:
    """When one string is struck (in samples), how hard, and for how long it sounds."""
    at = np.rint(notes.start * sample_rate).astype(np.int64)  # the notes are in this order
    first, where = np.unique(at, return_index=True)
    velocity = np.maximum.reduceat(notes.velocity, where)
    end = np.maximum.reduceat(notes.end, where)
    end[:-1] = np.minimum(end[:-1], notes.start[where][1:])
    return first, velocity, end - notes.start[where]


def synthesize_note(pitch: int, velocity: int, seconds: float, sample_rate: int = SAMPLE_RATE) -> Samples:
    """One note that is held for `seconds`, with its release."""
    return PianoString(pitch, seconds, sample_rate).play(velocity, seconds)


class PianoString:
    """The harmonics of a pitch for as long as its longest note: every note is a mixture of them."""

    def __init__(self, pitch: int, longest: float, sample_rate: int = SAMPLE_RATE) -> None:
        pitched = frequency(pitch)
        lifetime = 2.5 * 2 ** ((60 - pitch) / 24)  # seconds until the fundamental has fallen to a third
        self.sample_rate = sample_rate
        self.longest = FADED * lifetime  # seconds
        n_samples = int((min(longest, self.longest) + TAIL) * sample_rate)
        time = np.arange(n_samples, dtype=np.float32) / np.float32(sample_rate)  # (N,)
        phase = (2 * np.pi * pitched) * time.astype(np.float64)
        attack = np.minimum(time / np.float32(ATTACK), 1)
        # sin(n x) from the two before it: 2 cos(x) sin((n-1) x) - sin((n-2) x). One sine serves them all.
        before, sine = np.zeros_like(time), np.sin(phase).astype(np.float32)
        twice_cosine = (2 * np.cos(phase)).astype(np.float32)
        audible = min(HARMONICS, int(np.ceil(sample_rate / 2 / pitched)) - 1)
        self.harmonics = np.empty((audible, n_samples), np.float32)  # (H, N)
        for n, harmonic in enumerate(self.harmonics, start=1):
            np.exp(time * np.float32(-(n**0.5) / lifetime), out=harmonic)
            harmonic *= sine
            harmonic *= attack
            before, sine = sine, twice_cosine * sine - before
        self.release = np.exp(time[: int((TAIL + 1) * sample_rate)] / np.float32(-RELEASE / 3))

    def play(self, velocity: int, seconds: float) -> Samples:
        hardness = velocity / 127
        seconds = min(seconds, self.longest)
        n_samples = int((seconds + TAIL) * self.sample_rate)
        strengths = (0.35 + 0.45 * hardness) ** np.arange(len(self.harmonics))
        mixture = (LOUDNESS * hardness**1.5 * strengths).astype(np.float32)
        note = mixture @ self.harmonics[:, :n_samples]  # (N,)
        released = int(np.ceil(seconds * self.sample_rate))
        note[released:] *= self.release[: n_samples - released]
        return np.asarray(note)
