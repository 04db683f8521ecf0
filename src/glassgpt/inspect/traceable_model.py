"""A language model whose steps can be seen and changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from glassgpt.generate.language_model import LanguageModel
from glassgpt.generate.prompt import Prompt
from glassgpt.inspect.traces.trace import Trace

if TYPE_CHECKING:
    from glassgpt.inspect.parameters.weights import ModelWeights
    from glassgpt.model import GPT2, NumpyGPT2


class TraceableModel(LanguageModel, Protocol):
    @property
    def model(self) -> GPT2 | NumpyGPT2: ...
    @property
    def torch_model(self) -> GPT2: ...
    @property
    def weights(self) -> ModelWeights: ...
    def trace(self, text: Prompt) -> Trace: ...
