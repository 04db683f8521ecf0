"""The music before the model's: a performance, cut at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glassgpt.music.event_codec import PerformanceTokenizer, Player, to_steps
from glassgpt.music.performance import Performance
from glassgpt.tokenizer.events import STEPS_PER_SECOND


@dataclass(frozen=True)
class Primer:
    """The music before the model's."""

    cut: int = 0  # steps
    ids: list[int] = field(default_factory=list)  # the events until then
    finished: Performance = field(default_factory=lambda: Performance.from_notes([], [], [], []))
    held: Performance = field(default_factory=lambda: Performance.from_notes([], [], [], []))

    def player(self, codec: PerformanceTokenizer) -> Player:
        """The player at the cut: the held notes sound."""
        player = Player(codec.vocabulary)
        for id in self.ids:
            player.push(id)
        player.notes.clear()
        player.one_key = True
        return player

    def join(self, played: Performance) -> Performance:
        """The primer's notes as they were played, and the model's."""
        held = self.held
        started = played.start < self.cut / STEPS_PER_SECOND  # the held notes, now with an end
        kept = Performance(played.start[~started], played.end[~started], played.pitch[~started],
                           played.velocity[~started])  # fmt: skip
        by_pitch = np.lexsort((held.start, held.pitch))
        ends = played.end[started][np.lexsort((played.start[started], played.pitch[started]))]
        held = Performance(held.start[by_pitch], ends, held.pitch[by_pitch], held.velocity[by_pitch])
        return self.finished.merge(held).merge(kept)


def cut_primer(primer: Performance, cut: int, codec: PerformanceTokenizer) -> Primer:
    """The primer's notes that began before the cut (in steps), and its events until then.

    Notes beyond the vocabulary's range of pitches are dropped, as they are in encoding.
    """
    events = codec.vocabulary
    on, off = to_steps(primer)
    began = (on < cut) & (primer.pitch >= events.lowest) & (primer.pitch <= events.highest)
    over = off <= cut
    finished, held = (primer.choose(began & over), primer.choose(began & ~over))
    ids, now = [], 0
    for id in codec.encode(primer.choose(began)).tolist():
        if events.time_shift <= id < events.velocity:
            now += id - events.time_shift + 1
        if now > cut:
            break
        ids.append(id)
    while ids and events.time_shift <= ids[-1] < events.velocity:
        ids.pop()
    return Primer(cut, ids, finished, held)
