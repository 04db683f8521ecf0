"""A melody and its accompaniment as one sequence of events, for a model that accompanies.

Liu et al. (2018) and the Music Transformer give the whole melody first, as a prefix. A song is longer than a
model's context, so here the two alternate, eight seconds at a time:

    MELODY events of seconds 0 to 8, ACCOMPANIMENT events of seconds 0 to 8, MELODY events of 8 to 16, ...

Before it writes a segment of accompaniment the model has seen that segment of the melody and all that came
before. A note that is held over the border begins in one segment and ends in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from glassgpt.music.event_codec import PerformanceTokenizer
from glassgpt.music.performance import Performance
from glassgpt.tokenizer.events import ACCOMPANIMENT, MAX_SHIFT, MELODY, EventTokenizer, EventVocabulary

SEGMENT = 800  # steps of 10 ms


def interleave(
    melody: Performance, accompaniment: Performance, tokenizer: EventTokenizer
) -> npt.NDArray[np.int64]:
    """The ids of a song for training: segments of melody and accompaniment in turn."""
    codec = PerformanceTokenizer(tokenizer.events.name)
    parts = [split_by_time(codec.encode(part).tolist(), tokenizer.events) for part in (melody, accompaniment)]
    before, after = tokenizer.encode(f"{MELODY} {ACCOMPANIMENT}")
    ids: list[int] = []
    for sung, played in zip_longest(*parts, fillvalue=[]):
        ids += [before, *sung, after, *played]
    return np.array(ids, np.int64)


def split_by_time(ids: Iterable[int], events: EventVocabulary, length: int = SEGMENT) -> list[list[int]]:
    """The events of each segment of `length` steps. Time is counted from the beginning of the segment;
    the pause before its end is not written."""
    segments: list[list[int]] = []
    now = written = 0  # steps, of the event and of the shifts written before it
    for id in ids:
        if events.time_shift <= id < events.velocity:
            now += id - events.time_shift + 1
            continue
        while len(segments) <= now // length:
            written = len(segments) * length
            segments.append([])
        segments[-1] += [*shifts(now - written, events), id]
        written = now
    return segments


def shifts(steps: int, events: EventVocabulary) -> Sequence[int]:
    """The TIME_SHIFT events of a pause: whole seconds, then the rest."""
    seconds, rest = divmod(steps, MAX_SHIFT)
    whole = [events.time_shift + MAX_SHIFT - 1] * seconds
    return [*whole, events.time_shift + rest - 1] if rest else whole
