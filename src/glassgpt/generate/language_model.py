"""The part of `GPT` that rooms below `gpt` use, which take one as an argument: tasks, traces, `fill`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from glassgpt.backends.protocol import Backend
from glassgpt.config import Config
from glassgpt.generate.engine.fair_lock import FairLock
from glassgpt.generate.generation import Generation
from glassgpt.generate.prompt import Prompt
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.stream import TextStream

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer


class LanguageModel(Protocol):
    """A model with its tokenizer, as `glassgpt.load` returns it. `tasks.task_model` and
    `inspect.traceable_model` add what those rooms need."""

    backend: Backend
    tokenizer: Tokenizer | None
    name: str

    @property
    def config(self) -> Config: ...
    @property
    def lock(self) -> FairLock: ...
    def require_tokenizer(self, purpose: str) -> Tokenizer: ...
    def encode(self, text: str, allow_special: bool = False) -> list[int]: ...
    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray: ...
    def generate(
        self, prompt: Sequence[Prompt], *, settings: SamplingParams | None = None
    ) -> list[Generation]: ...
    def stream(
        self, prompt: Prompt | None = None, *, settings: SamplingParams | None = None
    ) -> TextStream: ...
