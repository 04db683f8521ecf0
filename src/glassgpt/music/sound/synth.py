"""A small piano in numpy, so that every machine can play: harmonics that decay.

A struck string sounds at whole multiples of its frequency. The harder it is struck, the louder it is and the
stronger its high harmonics are; high strings, and high harmonics of any string, fade sooner; when the damper
falls back, the rest is gone within a tenth of a second. For the sound of a real piano see render.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from glassgpt.music.performance import Performance
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
    """Mono sound of the performance, between -1 and 1."""
    sound = np.zeros(int((performance.seconds + TAIL) * sample_rate) + 1, np.float32)
    notes = zip(performance.start, performance.end, performance.pitch, performance.velocity, strict=True)
    with progress("rendering", len(performance.start), unit="notes") as advance:
        for start, end, pitch, velocity in notes:
            first = round(start * sample_rate)
            note = synthesize_note(int(pitch), int(velocity), float(end - start), sample_rate)
            sound[first : first + len(note)] += note[: len(sound) - first]
            advance(1)
    loudest = float(abs(sound).max(initial=0.0))
    return sound if loudest <= 1 else sound / np.float32(loudest)


def synthesize_note(pitch: int, velocity: int, seconds: float, sample_rate: int = SAMPLE_RATE) -> Samples:
    """One note that is held for `seconds`, with its release."""
    pitched = frequency(pitch)
    lifetime = 2.5 * 2 ** ((60 - pitch) / 24)  # seconds until the fundamental has fallen to a third
    seconds = min(seconds, FADED * lifetime)
    time = np.arange(int((seconds + TAIL) * sample_rate), dtype=np.float32) / np.float32(sample_rate)  # (N,)
    phase = (2 * np.pi * pitched) * time.astype(np.float64)
    # sin(n x) from the two before it: 2 cos(x) sin((n-1) x) - sin((n-2) x). One sine serves all harmonics.
    before, sine = np.zeros_like(time), np.sin(phase).astype(np.float32)
    twice_cosine = (2 * np.cos(phase)).astype(np.float32)
    hardness = velocity / 127
    wave = np.zeros_like(time)
    for n in range(1, HARMONICS + 1):
        if n * pitched >= sample_rate / 2:
            break
        strength = (0.35 + 0.45 * hardness) ** (n - 1)
        wave += np.float32(strength) * sine * np.exp(time * np.float32(-(n**0.5) / lifetime))
        before, sine = sine, twice_cosine * sine - before
    wave *= np.float32(LOUDNESS * hardness**1.5)
    wave *= np.minimum(time / np.float32(ATTACK), 1)
    wave *= np.exp(np.minimum(np.float32(seconds) - time, 0) / np.float32(RELEASE / 3))
    return wave
