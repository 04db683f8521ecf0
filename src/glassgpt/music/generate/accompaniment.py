"""An accompaniment to a melody, one segment of eight seconds after another."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from functools import partial

from glassgpt.errors import SettingError, UserError
from glassgpt.generate.generation import Interrupted
from glassgpt.gpt import GPT
from glassgpt.music.event_codec import PerformanceTokenizer, Player
from glassgpt.music.generate.music_sample import (
    InterruptedMusic,
    MusicSample,
    check,
    cut_short,
    fade,
    tokenizer_of,
)
from glassgpt.music.generate.rule import PlayRule
from glassgpt.music.interleave import SEGMENT, split_by_time
from glassgpt.music.performance import Performance
from glassgpt.music.settings import Sampling
from glassgpt.progress import Advance, Progress, no_progress
from glassgpt.ranges import SEEDS
from glassgpt.tokenizer.events import ACCOMPANIMENT, MELODY, STEPS_PER_SECOND, EventTokenizer


def accompany(
    gpt: GPT,
    melody: Performance,
    *,
    samples: int = 1,
    seed: int | None = None,
    sampling: Sampling | None = None,
    progress: Progress = no_progress,
) -> list[MusicSample]:
    """An accompaniment to a melody, as long as it is. The performance of a result is the accompaniment alone.
    Ctrl-C raises `InterruptedMusic`."""
    tokenizer = tokenizer_of(gpt)
    if not tokenizer.melody:
        raise UserError(
            f"{gpt.name} has not learned to accompany. Train a model on songs prepared with --melody TRACK."
        )
    if not len(melody):
        raise SettingError("the melody has no notes. Choose another track.")
    check(melody.seconds, samples, seed)
    sampling = Sampling() if sampling is None else sampling
    seed = secrets.randbits(32) if seed is None else seed
    codec = PerformanceTokenizer(tokenizer.events.name)
    segments = split_by_time(codec.encode(melody).tolist(), tokenizer.events)
    end = math.ceil(melody.seconds * STEPS_PER_SECOND)
    finished: list[MusicSample] = []
    with progress("accompanying", samples * end, unit="steps of 10 ms") as advance:
        try:
            for number in range(samples):
                sample_seed = (seed + number) % SEEDS
                finished.append(accompany_once(gpt, tokenizer, segments, end, sample_seed, sampling, advance))
        except InterruptedMusic as interrupt:
            raise InterruptedMusic(finished + interrupt.samples) from None
    return finished


def accompany_once(
    gpt: GPT,
    tokenizer: EventTokenizer,
    segments: Sequence[Sequence[int]],
    end: int,
    seed: int,
    sampling: Sampling,
    advance: Advance,
) -> MusicSample:
    """Segment by segment: the melody's events are given, the accompaniment's drawn."""
    before, after = tokenizer.encode(f"{MELODY} {ACCOMPANIMENT}")
    player = Player(tokenizer.events, one_key=True)
    settings = sampling.settings(SEGMENT / STEPS_PER_SECOND, stop_tokens=(before,))
    history: list[list[int]] = []

    def result() -> MusicSample:
        ids = [id for segment in history for id in segment]
        remarks = cut_short(player.now, end)
        return MusicSample(
            fade(player.performance()), player.now / STEPS_PER_SECOND, ids, seed, notes=remarks
        )

    try:
        for number, sung in enumerate(segments):
            player.now = number * SEGMENT
            until = min(end, player.now + SEGMENT)
            make_rule = partial(
                PlayRule, tokenizer, player, until, before,
                mask=not sampling.allow_impossible, may_finish=True, advance=advance,
            )  # fmt: skip
            history.append([before, *sung, after])
            prompt = fit([[tokenizer.eot_id], *history], gpt.config.n_positions * 3 // 4)
            generation = gpt.generate(prompt, settings=settings, rule=make_rule, seed=(seed + number) % SEEDS)
            assert isinstance(generation.rule, PlayRule)
            history[-1] += generation.rule.as_played(generation.tokens)
            advance(until - player.now)
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, Interrupted):
            history[-1] += [id for generation in interrupt.generations[0] for id in generation.tokens]
        raise InterruptedMusic([result()] if player.now else []) from None
    player.now = end
    return result()


def fit(history: Sequence[list[int]], limit: int) -> list[int]:
    """The last segments that fit; at least the last one."""
    kept: list[int] = []
    for segment in reversed(history):
        if kept and len(kept) + len(segment) > limit:
            break
        kept = segment + kept
    return kept
