"""What comes out: a finished generation, and the events from which it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from glassgpt.errors import UserError

if TYPE_CHECKING:
    from glassgpt.generate.sampling.logits_processors import TokenRule
    from glassgpt.generate.sampling.params import SamplingParams

Alternatives = list[tuple[int, float]]  # (token id, log-probability), most probable first


class PromptLogprobs(NamedTuple):
    """What the model says about a prompt's tokens; None where nothing stands before one that it could see."""

    logprobs: list[float | None]
    alternatives: list[Alternatives | None]


@dataclass
class Generation:
    """One continuation of a prompt. `str()` of it is the text."""

    text: str  # the continuation alone, up to a stop string
    tokens: list[int]  # its ids; end-of-text and what only belonged to a stop string are left out
    finish_reason: str  # "length", "stop" or "cancelled"
    prompt: str | list[int] = ""  # as it was given
    prompt_tokens: int = 0  # how many the prompt had
    logprobs: list[float] | None = None  # of each token, as the model said it before any setting
    alternatives: list[Alternatives] | None = None  # of each token, where asked for
    prompt_logprobs: list[float | None] | None = None  # of each token of the prompt, where asked for
    prompt_alternatives: list[Alternatives | None] | None = None  # likewise
    seed: int | None = None  # repeats this text; None where nothing was drawn
    sample: int = 0  # the number of this sample: its random numbers follow from seed and number
    score: float | None = None  # by which best_of or a beam search ranked it
    notes: list[str] = field(default_factory=list)  # for the user, such as that a context window slid
    rule: TokenRule | None = field(default=None, compare=False, repr=False)  # the one made for this text
    seconds: float = 0.0  # from the first token's computation on
    cached_tokens: int = field(default=0, compare=False)  # of the prompt: copied, not read again
    queue_s: float = field(default=0.0, compare=False)  # until there was a row for it
    first_token_s: float | None = field(default=None, compare=False)  # until the first token, queue included
    samples: list[Generation] = field(default_factory=list, repr=False)  # all of this prompt, best first

    @property
    def tokens_per_s(self) -> float:
        return len(self.tokens) / self.seconds if self.seconds > 0 else 0.0

    @property
    def joint_logprob(self) -> float | None:
        """The log-probability of the whole text."""
        return None if self.logprobs is None else sum(self.logprobs)

    def __str__(self) -> str:
        return self.text


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during generation. `generations` has, for each prompt, the texts so far."""

    def __init__(self, generations: list[list[Generation]]) -> None:
        super().__init__()
        self.generations = generations


class Event(NamedTuple):
    """What a step of the engine did for one sequence."""

    request: int
    sample: int
    text: str = ""  # new text; may be empty while a character or a stop string is undecided
    token: int | None = None
    logprob: float | None = None
    alternatives: Alternatives | None = None
    note: str | None = None
    generation: Generation | None = None  # the whole, with the last event of a sequence
    prompt: PromptLogprobs | None = None  # where asked for: once for a request, before its first token
    error: UserError | None = None  # why the sequence ended early, likewise


def order_samples(candidates: Sequence[Generation], settings: SamplingParams) -> list[Generation]:
    """The samples of one prompt by number; with `best_of`, the best of them, best first.

    The best have the highest log-probability per token: a joint probability would prefer whatever is
    shortest. An empty text has none, and comes last.
    """
    if settings.best_of is None:
        return sorted(candidates, key=lambda generation: generation.sample)
    for generation in candidates:
        if generation.logprobs:
            generation.score = sum(generation.logprobs) / len(generation.logprobs)
    ranked = sorted(
        candidates, key=lambda g: (g.score is None, 0.0 if g.score is None else -g.score, g.sample)
    )
    return ranked[: settings.samples]
