"""MIDI <-> events.

Read tokenizer/events.py (the alphabet: NOTE_ON, NOTE_OFF, TIME_SHIFT, VELOCITY), performance.py (notes),
event_codec.py (notes <-> ids), midi.py (files), generate/ (composing), interleave.py (melody and
accompaniment as one sequence), prepare.py (training data), sound/ and roll.py.
"""

from glassgpt.music.event_codec import PerformanceTokenizer
from glassgpt.music.performance import Performance

__all__ = ["Performance", "PerformanceTokenizer"]
