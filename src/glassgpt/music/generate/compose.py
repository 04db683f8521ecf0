"""Music from nothing, and after a primer.

A key struck while it sounds ends its former note, and no note sounds longer than ten seconds: a model now and
then forgets a NOTE_OFF, and the note would sound forever. Music from nothing begins with its first note: many
songs begin with a rest, which the model may write, but which takes no time.
"""

from __future__ import annotations

import secrets

from glassgpt.generate.generation import Generation, Interrupted
from glassgpt.gpt import GPT
from glassgpt.music.event_codec import PerformanceTokenizer, Player
from glassgpt.music.generate.music_sample import (
    MAX_SECONDS,
    InterruptedMusic,
    MusicSample,
    check,
    cut_short,
    fade,
    tokenizer_of,
)
from glassgpt.music.generate.primer import Primer, cut_primer
from glassgpt.music.generate.rule import PlayRule
from glassgpt.music.performance import Performance
from glassgpt.music.settings import Sampling
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_number
from glassgpt.tokenizer.events import STEPS_PER_SECOND, EventTokenizer, EventVocabulary


def sample(
    gpt: GPT,
    seconds: float = 30.0,
    *,
    samples: int = 1,
    seed: int | None = None,
    sampling: Sampling | None = None,
    progress: Progress = no_progress,
) -> list[MusicSample]:
    """Music from nothing, exactly `seconds` long."""
    return compose(gpt, Primer(), seconds, samples, seed, sampling, progress)


def continue_primer(
    gpt: GPT,
    primer: Performance,
    seconds: float = 30.0,
    *,
    cut: float | None = None,
    samples: int = 1,
    seed: int | None = None,
    sampling: Sampling | None = None,
    progress: Progress = no_progress,
) -> list[MusicSample]:
    """The primer up to the time `cut` (by default its end), and `seconds` of music that the model adds.

    Every note that began before the cut is kept as it was played; one that is still held there ends when the
    model says so.
    """
    if cut is None:
        cut = primer.seconds
    check_number("cut", cut, 0.01, MAX_SECONDS, "seconds of the primer")
    codec = PerformanceTokenizer(tokenizer_of(gpt).events.name)
    part = cut_primer(primer, round(cut * STEPS_PER_SECOND), codec)
    return compose(gpt, part, seconds, samples, seed, sampling, progress)


def compose(
    gpt: GPT,
    primer: Primer,
    seconds: float,
    samples: int,
    seed: int | None,
    sampling: Sampling | None,
    progress: Progress,
) -> list[MusicSample]:
    """The primer and `seconds` of music after it, `samples` times. Ctrl-C raises `InterruptedMusic`."""
    tokenizer = tokenizer_of(gpt)
    codec = PerformanceTokenizer(tokenizer.events.name)
    sampling = Sampling() if sampling is None else sampling
    check(seconds, samples, seed)
    seed = secrets.randbits(32) if seed is None else seed
    end = primer.cut + round(seconds * STEPS_PER_SECOND)
    with progress("composing", samples * (end - primer.cut), unit="steps of 10 ms") as advance:

        def make_rule() -> PlayRule:
            return PlayRule(
                tokenizer, primer.player(codec), end, tokenizer.eot_id, begin=primer.cut,
                mask=not sampling.allow_impossible, at_once=primer.cut == 0, advance=advance,
            )  # fmt: skip

        settings = sampling.settings(seconds, seed=seed, samples=samples)
        prompt = [tokenizer.eot_id, *primer.ids]
        try:
            generations = gpt.generate(prompt, settings=settings, rule=make_rule).samples
        except Interrupted as interrupt:
            partial = [finish(each, primer, end, seed, tokenizer, True) for each in interrupt.generations[0]]
            raise InterruptedMusic([music for music in partial if music.ids]) from None
    return [finish(generation, primer, end, seed, tokenizer, False) for generation in generations]


def finish(
    generation: Generation, primer: Primer, end: int, seed: int, tokenizer: EventTokenizer, interrupted: bool
) -> MusicSample:
    """The music of a generation, after its primer."""
    rule = generation.rule
    assert isinstance(rule, PlayRule)
    player = rule.player
    last = max(primer.cut, player.now) if interrupted else end
    remarks = cut_short(last - primer.cut, end - primer.cut) if interrupted else unfinished(player, end)
    performance = primer.join(fade(player.performance(), primer.cut))
    ids = rule.as_played(generation.tokens)
    if primer.cut == 0:
        ids = drop_rests(ids, tokenizer.events)
    return MusicSample(
        performance, last / STEPS_PER_SECOND, ids, seed, primer.cut / STEPS_PER_SECOND,
        [*generation.notes, *remarks],
    )  # fmt: skip


def drop_rests(ids: list[int], events: EventVocabulary) -> list[int]:
    """Without the TIME_SHIFTs before the first note, which took no time."""
    note_ons = range(events.note_on, events.note_off)
    first = next((place for place, id in enumerate(ids) if id in note_ons), len(ids))
    return [id for id in ids[:first] if not events.time_shift <= id < events.velocity] + ids[first:]


def unfinished(player: Player, end: int) -> list[str]:
    if player.now >= end:
        return []
    seconds = player.now / STEPS_PER_SECOND
    return [f"the model wrote too many events without a pause, so the music ends after {seconds:.1f} s"]
