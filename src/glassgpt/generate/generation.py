"""The results: a finished generation, and the events of each step."""

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
    """The log-probabilities of a prompt's tokens; None for a token without a visible predecessor."""

    logprobs: list[float | None]
    alternatives: list[Alternatives | None]


@dataclass
class Generation:
    """One continuation of a prompt. `str()` of it is the text."""

    text: str  # the continuation alone, up to a stop string
    tokens: list[int]  # its ids, without end-of-text and tokens that belong only to a stop string
    finish_reason: str  # "length", "stop" or "cancelled"
    prompt: str | list[int] = ""  # as it was given
    prompt_tokens: int = 0  # the length of the prompt
    logprobs: list[float] | None = None  # of each token, from the model itself, before any setting
    alternatives: list[Alternatives] | None = None  # of each token, if requested
    prompt_logprobs: list[float | None] | None = None  # of each token of the prompt, if requested
    prompt_alternatives: list[Alternatives | None] | None = None  # likewise
    seed: int | None = None  # repeats this text; None if nothing was drawn at random
    sample: int = 0  # the number of this sample: its random numbers follow from seed and number
    score: float | None = None  # that best_of or a beam search ranked it by
    notes: list[str] = field(default_factory=list)  # for the user, for example that a context window slid
    rule: TokenRule | None = field(default=None, compare=False, repr=False)  # made for this text
    seconds: float = 0.0  # since computing the first token began
    cached_tokens: int = field(default=0, compare=False)  # of the prompt, copied from the prefix cache
    queue_s: float = field(default=0.0, compare=False)  # seconds until it had a row
    first_token_s: float | None = field(default=None, compare=False)  # seconds, queue included
    samples: list[Generation] = field(default_factory=list, repr=False)  # of this prompt, in order

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
    """The result of a step of the engine for one sequence."""

    request: int
    sample: int
    text: str = ""  # new text; empty while a character or a stop string is incomplete
    token: int | None = None
    logprob: float | None = None
    alternatives: Alternatives | None = None
    note: str | None = None
    generation: Generation | None = None  # the whole text, in the last event of a sequence
    prompt: PromptLogprobs | None = None  # if requested: once per request, before its first token
    error: UserError | None = None  # why the sequence ended early, in its last event


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
