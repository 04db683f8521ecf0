"""What a model that makes music returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glassgpt.errors import UserError
from glassgpt.gpt import GPT
from glassgpt.music.performance import Performance
from glassgpt.ranges import SEEDS, check_number, check_whole
from glassgpt.tokenizer.events import STEPS_PER_SECOND, EventTokenizer

MAX_SECONDS = 3600.0
MAX_SAMPLES = 64
LONGEST = 10.0  # seconds of a note: a piano string has faded by then


@dataclass(frozen=True)
class MusicSample:
    """Music that a model made."""

    performance: Performance
    seconds: float
    ids: list[int]  # the events that the model wrote
    seed: int
    primer_seconds: float = 0.0  # of the primer
    notes: list[str] = field(default_factory=list)  # remarks for the user

    @property
    def composed(self) -> Performance:
        """The notes that the model began."""
        return self.performance.choose(self.performance.start >= self.primer_seconds)


class InterruptedMusic(KeyboardInterrupt):
    """Ctrl-C while music was made. `samples` has the music so far."""

    def __init__(self, samples: list[MusicSample]) -> None:
        super().__init__()
        self.samples = samples


def fade(performance: Performance, begin: int = 0) -> Performance:
    """No note longer than LONGEST, counted from `begin` (in steps) if it sounds by then."""
    since = performance.start.clip(min=begin / STEPS_PER_SECOND)
    end = np.minimum(performance.end, since + LONGEST)
    return Performance(performance.start, end, performance.pitch, performance.velocity)


def cut_short(steps: int, of: int) -> list[str]:
    if steps >= of:
        return []
    return [f"interrupted after {steps / STEPS_PER_SECOND:.1f} of {of / STEPS_PER_SECOND:.1f} s"]


def tokenizer_of(gpt: GPT) -> EventTokenizer:
    tokenizer: object = gpt.tokenizer
    if not isinstance(tokenizer, EventTokenizer):
        raise UserError(
            f"{gpt.name or 'this model'} is not a model of piano performances. Name one, such as music, or "
            "train one: see glassgpt music prepare --help"
        )
    return tokenizer


def check(seconds: float, samples: int, seed: int | None) -> None:
    check_number("seconds", seconds, 0.01, MAX_SECONDS, "30 is half a minute")
    check_whole("samples", samples, 1, MAX_SAMPLES)
    if seed is not None:
        check_whole("seed", seed, 0, SEEDS)
