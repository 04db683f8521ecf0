"""MIDI <-> events. Read events.py (the alphabet), performance.py (notes), codec.py (notes <-> ids) and
midi.py (files)."""

from glassgpt.music.event_codec import PerformanceTokenizer
from glassgpt.music.performance import Performance

__all__ = ["Performance", "PerformanceTokenizer"]
