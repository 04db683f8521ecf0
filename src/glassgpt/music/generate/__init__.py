"""A model makes music: from nothing, after a primer, around a melody.

    gpt = glassgpt.load("music")
    (music,) = sample(gpt, seconds=30, seed=1)
    write_midi(music.performance, "a.mid", music.seconds)

All of it is `gpt.generate` with a rule. Read rule.py, music_sample.py (the result), compose.py with
primer.py, then accompaniment.py.
"""

from glassgpt.music.generate.accompaniment import accompany
from glassgpt.music.generate.compose import continue_primer, sample
from glassgpt.music.generate.music_sample import InterruptedMusic, MusicSample
from glassgpt.music.generate.rule import PlayRule

__all__ = ["InterruptedMusic", "MusicSample", "PlayRule", "accompany", "continue_primer", "sample"]
