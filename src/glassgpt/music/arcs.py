"""Attention from one event to the events before it, as arcs on a piano roll: the Music Transformer's figure.

An event is drawn at its time and pitch; TIME_SHIFT and VELOCITY have no pitch, and are drawn at that of
the next note that begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.gpt import GPT
from glassgpt.music.generate.music_sample import tokenizer_of
from glassgpt.music.roll import AttentionArc
from glassgpt.ranges import check_whole
from glassgpt.tokenizer.events import STEPS_PER_SECOND, EventVocabulary


def place_events(ids: Sequence[int], events: EventVocabulary) -> list[tuple[float, float]]:
    """The time in seconds and the pitch of every event."""
    now, following = 0, 60.0
    times, pitches = [], [0.0] * len(ids)
    for id in ids:
        if events.time_shift <= id < events.velocity:
            now += id - events.time_shift + 1
        times.append(now / STEPS_PER_SECOND)
    for i in reversed(range(len(ids))):
        pitches[i] = following
        if events.note_on <= ids[i] < events.time_shift:
            pitches[i] = float((ids[i] - events.note_on) % events.pitches + events.lowest)
            if ids[i] < events.note_off:
                following = pitches[i]
    return list(zip(times, pitches, strict=True))


def attention_arcs(
    gpt: GPT,
    ids: Sequence[int],
    event: int = -1,
    layer: int = -1,
    heads: Sequence[int] | None = None,
    per_head: int = 5,
) -> list[AttentionArc]:
    """The strongest `per_head` weights of each head of a layer, from event number `event` of `ids`.

    The model sees as many of the events before it as fit its context. Negative numbers count from the end.
    """
    tokenizer, config = tokenizer_of(gpt), gpt.config
    check_whole("event", event, -len(ids), len(ids) - 1, "the events of this piece")
    check_whole("layer", layer, -config.n_layer, config.n_layer - 1, "the model's layers")
    chosen = range(config.n_head) if heads is None else heads
    for head in chosen:
        if not 0 <= head < config.n_head:
            raise SettingError(f"head {head} does not exist: they go from 0 to {config.n_head - 1}.")
    query = event % len(ids)
    first = max(0, query + 1 - (config.n_positions - 1))
    places = place_events(ids, tokenizer.events)
    trace = gpt.trace([tokenizer.eot_id, *ids[first : query + 1]])
    arcs = []
    for head in chosen:
        weights = np.asarray(trace.attention[layer % config.n_layer, head])[-1, 1:]  # without end-of-text
        for at in np.argsort(-weights)[:per_head]:
            seconds, pitch = places[first + int(at)]
            arcs.append(AttentionArc(head, *places[query], seconds, pitch, float(weights[at])))
    return arcs
