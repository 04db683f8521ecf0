"""A piano performance: notes with an onset, an end, a pitch and a velocity.

Notes of the same pitch may overlap (two hands, two tracks). A stream of events cannot say which of them a
NOTE_OFF ends, so the first that began ends first: the k-th onset of a pitch belongs to its k-th end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Performance:
    """Notes in the order of their onsets (then pitches): arrays of one length. Times are in seconds."""

    start: Floats
    end: Floats
    pitch: Ints  # 0 to 127; 60 is middle C
    velocity: Ints  # 1 to 127

    @classmethod
    def from_notes(cls, start: object, end: object, pitch: object, velocity: object) -> Performance:
        """Sort the notes, and pair onsets and ends of each pitch first in, first out."""
        begins, ends = np.asarray(start, np.float64), np.asarray(end, np.float64)
        pitches, velocities = np.asarray(pitch, np.int64), np.asarray(velocity, np.int64)
        by_pitch = np.lexsort((begins, pitches))
        ends = ends[np.lexsort((ends, pitches))]  # both are now grouped by pitch and sorted within it
        begins, pitches, velocities = begins[by_pitch], pitches[by_pitch], velocities[by_pitch]
        order = np.lexsort((pitches, begins))
        return cls(begins[order], ends[order], pitches[order], velocities[order])

    def __len__(self) -> int:
        return len(self.start)

    @property
    def seconds(self) -> float:
        """When the last note ends."""
        return float(self.end.max(initial=0.0))

    def choose(self, which: npt.NDArray[np.bool_]) -> Performance:
        """The notes where `which` is True."""
        return Performance(self.start[which], self.end[which], self.pitch[which], self.velocity[which])

    def crop(self, first: float, last: float) -> Performance:
        """The notes that sound between two times, cut at both and moved to begin at 0."""
        kept = (self.start < last) & (self.end > first)
        start, end = self.start[kept].clip(min=first) - first, self.end[kept].clip(max=last) - first
        return Performance.from_notes(start, end, self.pitch[kept], self.velocity[kept])

    def transpose(self, semitones: int) -> Performance:
        """Every pitch moved; notes that leave the range of MIDI are dropped."""
        pitch = self.pitch + semitones
        kept = (pitch >= 0) & (pitch <= 127)
        return Performance(self.start[kept], self.end[kept], pitch[kept], self.velocity[kept])

    def scale_time(self, factor: float) -> Performance:
        """Slower (factor above 1) or faster."""
        return Performance(self.start * factor, self.end * factor, self.pitch, self.velocity)

    def merge(self, other: Performance) -> Performance:
        """The notes of both."""
        pairs = (
            (getattr(self, name), getattr(other, name)) for name in ("start", "end", "pitch", "velocity")
        )
        return Performance.from_notes(*(np.concatenate(pair) for pair in pairs))
