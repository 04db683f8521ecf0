"""The settings of a generation, and which combinations are invalid.

Every range is checked here, once, before any work: an error names the value, the range and what to write
instead. The steps that use the settings, and their order, are in `sampler.py`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from glassgpt.errors import SettingError, short_repr
from glassgpt.ranges import SEEDS, check_number, check_whole

# Far beyond any logit, and far from where float32 overflows: 1e300 would make them infinite.
MAX_LOGIT_BIAS = 1_000_000
MAX_TEMPERATURE = 1_000_000  # all tokens are equally likely long before
MAX_TOKENS = 10**9  # of one text: a year at 30 tokens a second
MAX_SAMPLES = 10_000  # of one prompt: all are kept until the last is finished
MAX_BEAMS = 1024  # all are computed together
MAX_TOP_K = 2**31 - 1  # more tokens than any vocabulary has


class Filter(NamedTuple):
    """A setting that limits which tokens may be drawn: a number from `low` to `high`, or None for off."""

    low: float
    high: float
    above: bool  # `low` itself is out of range
    usual: str  # for the error message
    neutral: float  # keeps every token: a client of the server sends this to switch it off
    off: float  # the samplers use this for a sequence without the filter in a batch that has it


# The one table of filters, in the order in which they are applied. A field of `SamplingParams` and a row
# here make a filter known to the command line, the server, task definitions, lm-evaluation-harness and beam
# search; sampler.py and backends/native/cpp/sampling.cpp compute it (docs/generation.md: adding a filter).
FILTERS = {
    # Off is infinity, not 1: a running sum may reach the total before the last tiny probability is added.
    "typical_p": Filter(0, 1, True, "0.95 is usual", neutral=1, off=math.inf),
    "top_p": Filter(0, 1, True, "0.9 is usual", neutral=1, off=math.inf),
    "min_p": Filter(0, 1, False, "0.05 is usual", neutral=0, off=0.0),
}
DRAWING = ("temperature", "top_k", *FILTERS)  # all settings of a draw

STOP_AT = ("sentence", "line")
SPECULATE = ("auto", "lookup", "draft", "off")

# The constraints on a text, and how messages call them.
CONSTRAINTS = {
    "schema": "JSON schema",
    "regex": "regular expression",
    "grammar": "grammar",
    "choice": "choice",
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose the next token, how often, and when to stop. `None` switches a setting off."""

    max_new_tokens: int = 100  # end after this many
    min_new_tokens: int = 0  # do not end before this many
    temperature: float = 0.8  # 0 always picks the most probable token
    top_k: int | None = 40  # draw among the k most probable tokens; 0 is off
    top_p: float | None = None  # among the fewest tokens that together have at least this probability
    min_p: float | None = None  # among tokens at least this probable, relative to the most probable one
    typical_p: float | None = None  # among tokens with -log p near the entropy (Meister 2022)
    repetition_penalty: float | None = None  # penalizes tokens that already occur (CTRL); 1 is none
    presence_penalty: float | None = None  # subtracted once from the logit of every token so far
    frequency_penalty: float | None = None  # subtracted once per occurrence
    no_repeat_ngram: int | None = None  # never the same n tokens in a row twice
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)  # id -> added to its logit
    banned_words: tuple[str, ...] = ()  # never, as the tokenizer spells them
    required_words: tuple[str, ...] = ()  # made more likely by `required_bias`, but not forced
    required_bias: float = 5.0  # added to the logits of required words
    stop: tuple[str, ...] = ()  # end before any of these strings
    stop_keep: bool = False  # the text keeps the stop string that ended it
    until_suffix: tuple[str, ...] = ()  # end after any of these strings, which the text keeps
    stop_at: str | None = None  # sentence: end after a whole sentence, line: before a line break
    stop_on_repeat: int | None = None  # end when the last so many tokens stand earlier in the text
    stop_tokens: tuple[int, ...] = ()  # end at any of these ids
    ignore_eot: bool = False  # continue after end-of-text
    seed: int | None = None  # makes the text repeatable; none draws one and reports it
    schema: Any = None  # write JSON that this JSON schema describes
    regex: str | None = None  # write text that this regular expression matches as a whole
    grammar: str | None = None  # write text of this grammar, in the syntax of Lark or of GBNF
    choice: tuple[str, ...] = ()  # write one of these strings
    speculate: str = "auto"  # guess ahead: lookup, draft (with a draft model), off, or auto
    samples: int = 1  # how many texts
    best_of: int | None = None  # generate this many, return the `samples` most probable per token
    beams: int | None = None  # beam search of this width instead of drawing
    length_penalty: float = 1.0  # beams are ranked by log-probability / length ** length_penalty
    logprobs: int | None = 0  # how many alternatives to report per token; none reports nothing
    prompt_logprobs: int | None = None  # likewise for each token of the prompt, given those before it

    def __post_init__(self) -> None:
        for name in ("stop", "until_suffix", "banned_words", "required_words", "choice"):
            value = getattr(self, name)
            self._set(name, (value,) if isinstance(value, str) else _tuple(name, value, str))
        self._set("stop_tokens", _tuple("stop_tokens", self.stop_tokens, int))
        if not isinstance(self.logit_bias, Mapping):
            raise SettingError(
                f"logit_bias is {short_repr(self.logit_bias)}; write a dict of token id to number."
            )
        self._check_lengths()
        self._check_sampling()
        self._check_penalties()
        self._check_tokens()
        self._check_constraints()
        if self.speculate not in SPECULATE:
            raise SettingError(
                f"speculate is {short_repr(self.speculate)}; write one of {', '.join(SPECULATE)}."
            )
        if self.best_of is not None:
            self._check_best_of(self.best_of)
        if self.beams is not None:
            self._check_beams(self.beams)

    def _check_lengths(self) -> None:
        check_whole("max_new_tokens", self.max_new_tokens, 0, MAX_TOKENS)
        check_whole("min_new_tokens", self.min_new_tokens, 0, self.max_new_tokens, "at most max_new_tokens")
        check_whole("samples", self.samples, 1, MAX_SAMPLES)
        check_number("length_penalty", self.length_penalty, -10, 10, "1 compares log-probability per token")
        if self.seed is not None:
            check_whole("seed", self.seed, 0, SEEDS)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, 0, MAX_TOP_K, "0 reports the token alone, None nothing")

    def _check_sampling(self) -> None:
        check_number("temperature", self.temperature, 0, MAX_TEMPERATURE, "0 is greedy, 0.8 is usual")
        if type(self.top_k) is int and self.top_k in (0, -1):  # off, as in vLLM and llama.cpp
            self._set("top_k", None)
        if self.top_k is not None:
            check_whole("top_k", self.top_k, 1, MAX_TOP_K, "0 or none switches it off")
        for name, (low, high, above, usual, _, _) in FILTERS.items():
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, low, high, f"{usual}, None switches it off", above=above)

    def _check_penalties(self) -> None:
        most, repetition = MAX_LOGIT_BIAS, self.repetition_penalty
        if repetition is not None:
            check_number("repetition_penalty", repetition, 0.001, 1000, "1.2 is usual, 1 is none")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, -most, most, "0 to 2 is usual")
        if self.no_repeat_ngram is not None:
            check_whole("no_repeat_ngram", self.no_repeat_ngram, 1, MAX_TOKENS, "None switches it off")
        hint = "5 makes a word about 150 times more likely"
        check_number("required_bias", self.required_bias, -most, most, hint)

    def _check_tokens(self) -> None:
        for token, bias in self.logit_bias.items():
            check_whole("a token id in logit_bias", token, 0)
            number = isinstance(bias, int | float) and not isinstance(bias, bool)
            if not number or not (abs(bias) <= MAX_LOGIT_BIAS or bias == -math.inf):
                raise SettingError(
                    f"logit_bias of token {token} is {short_repr(bias)}; write a number of at most "
                    f"{MAX_LOGIT_BIAS:,} up or down, or -inf to ban it."
                )
        for token in self.stop_tokens:
            check_whole("a token id in stop_tokens", token, 0)
        if self.stop_at is not None and self.stop_at not in STOP_AT:
            raise SettingError(f"stop_at is {short_repr(self.stop_at)}; write one of {', '.join(STOP_AT)}.")
        if self.stop_on_repeat is not None:
            check_whole("stop_on_repeat", self.stop_on_repeat, 2, MAX_TOKENS, "16 is usual")
        for name in ("stop", "until_suffix", "banned_words", "required_words"):
            if "" in getattr(self, name):
                raise SettingError(f"{name} contains an empty string; write some text or leave it out.")

    def _check_best_of(self, best_of: int) -> None:
        check_whole("best_of", best_of, 1, MAX_SAMPLES, "None switches it off")
        if best_of < self.samples:
            raise SettingError(
                f"best_of {best_of} is fewer than samples {self.samples}; "
                f"write best_of {self.samples} or more, or fewer samples."
            )
        if self.logprobs is None:
            raise SettingError("best_of compares log-probabilities; leave logprobs at 0 or more.")

    def _check_constraints(self) -> None:
        constraints = self._constraints()
        if len(constraints) > 1:
            raise SettingError(
                f"{constraints[0]} and {constraints[1]} cannot both be followed. Leave one out."
            )
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise SettingError(f"{name} is {short_repr(value)}; write it as text.")
        if constraints and self.beams is not None:
            raise SettingError(
                f"a beam search cannot follow a {CONSTRAINTS[constraints[0]]}. Leave out beams."
            )
        if self.schema is not None:
            self._set("schema", _parsed_schema(self.schema))

    def _check_beams(self, beams: int) -> None:
        check_whole("beams", beams, 1, MAX_BEAMS, "None switches beam search off")
        if self.samples > beams:
            raise SettingError(
                f"samples {self.samples} is more than beams {beams}; a search returns at most as many texts "
                f"as it has beams. Write beams {self.samples} or more."
            )
        drawing = [
            name
            for name in (*FILTERS, "best_of", "prompt_logprobs", "stop_on_repeat")
            if getattr(self, name) is not None
        ]
        drawing += [
            name for name in NOT_DRAWING if getattr(self, name) not in (*NOT_DRAWING[name], DEFAULTS[name])
        ]
        if drawing:
            raise _no_sampling_error(drawing[0], getattr(self, drawing[0]), beams)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the class is frozen; only __post_init__ calls this

    @property
    def constraint(self) -> str | None:
        """The name of the constraint in CONSTRAINTS that the text must follow."""
        return next(iter(self._constraints()), None)

    def _constraints(self) -> list[str]:
        return [name for name in CONSTRAINTS if getattr(self, name) not in (None, ())]

    @property
    def stops_at_text(self) -> bool:
        """Whether the text itself says when it ends, which needs a tokenizer."""
        return bool(self.stop or self.until_suffix or self.stop_at)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def candidates(self) -> int:
        """The number of texts generated for one prompt."""
        return self.samples if self.best_of is None else self.best_of

    @classmethod
    def of(cls, **settings: Any) -> SamplingParams:
        """Sampling parameters from keywords. An unknown name is a SettingError."""
        unknown = sorted(set(settings) - set(FIELDS))
        if unknown:
            raise SettingError(f"there is no setting {unknown[0]!r}. There are: {', '.join(FIELDS)}.")
        params = cls(**settings)
        if params.beams is not None:  # here a default that was typed differs from one that was not
            for name in NOT_DRAWING:
                if name in settings and settings[name] not in NOT_DRAWING[name]:
                    raise _no_sampling_error(name, settings[name], params.beams)
        return params


class SamplingParamsDict(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments, for type checkers."""

    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    no_repeat_ngram: int | None
    logit_bias: Mapping[int, float]
    banned_words: str | Sequence[str]
    required_words: str | Sequence[str]
    required_bias: float
    stop: str | Sequence[str]
    stop_keep: bool
    until_suffix: str | Sequence[str]
    stop_at: str | None
    stop_on_repeat: int | None
    stop_tokens: Sequence[int]
    ignore_eot: bool
    seed: int | None
    schema: Any
    regex: str | None
    grammar: str | None
    choice: str | Sequence[str]
    speculate: str
    samples: int
    best_of: int | None
    beams: int | None
    length_penalty: float
    logprobs: int | None
    prompt_logprobs: int | None


NOT_DRAWING: dict[str, tuple[float | None, ...]] = {"temperature": (0, 1), "top_k": (None, 1)}
FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams))
DEFAULTS = {
    f.name: f.default for f in dataclasses.fields(SamplingParams) if f.default is not dataclasses.MISSING
}


def _no_sampling_error(name: str, value: object, beams: int) -> SettingError:
    return SettingError(
        f"{name} {value} has no meaning with beams {beams}: a search draws nothing at random. "
        f"Leave out {name} or beams."
    )


def _parsed_schema(value: object) -> object:
    """A JSON schema: an object, true or false, perhaps as text."""
    example = '{"type": "object"}'
    try:
        value = json.loads(value) if isinstance(value, str) else value
        json.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise SettingError(f"schema is not JSON: {error}. Write an object such as {example}.") from None
    if not isinstance(value, dict | bool):
        raise SettingError(f"schema is {short_repr(value)}; write an object such as {example}.")
    return value


def _tuple(name: str, value: object, kind: type) -> tuple[Any, ...]:
    items = {str: "strings", int: "token ids"}[kind]
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(item, kind) for item in value
    ):
        raise SettingError(f"{name} is {short_repr(value)}; write a list of {items}.")
    return tuple(value)
