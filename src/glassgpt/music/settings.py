"""How the next event is chosen: the options of every command that makes music."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassgpt.generate.sampling.params import SamplingParams

EVENTS_PER_SECOND = 400  # a limit; dense piano has 50


# The comment after a field is its help text on the command line.
@dataclass(frozen=True, kw_only=True)
class Sampling:
    temperature: float = 1.0  # below 1: more regular; above 1: more surprising
    top_k: int | None = None  # draw among the k most probable events; 0 is off
    top_p: float | None = 0.98  # among the fewest events that together have at least this probability
    allow_impossible: bool = False  # also allow events without effect, such as the end of a silent note

    def __post_init__(self) -> None:
        self.settings(1.0)  # raises if a value is out of range

    def settings(self, seconds: float, **changes: Any) -> SamplingParams:
        """The settings of a generation of `seconds` of music."""
        return SamplingParams(
            max_new_tokens=1000 + int(EVENTS_PER_SECOND * seconds), temperature=self.temperature,
            top_k=self.top_k, top_p=self.top_p, logprobs=None, **changes,
        )  # fmt: skip
