"""The methods of `GPT` for tasks: translation, summaries, classification. `glassgpt.tasks` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack, overload

from glassgpt.errors import SettingError
from glassgpt.generate.sampling.params import SamplingParamsDict

if TYPE_CHECKING:
    from glassgpt.tasks.classify import Label
    from glassgpt.tasks.task_model import TaskModel


class TaskMethods:
    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a sequence of str
        self: TaskModel, text: str, to: str, **decoding: Unpack[SamplingParamsDict]
    ) -> str: ...

    @overload
    def translate(
        self: TaskModel, text: Sequence[str], to: str, **decoding: Unpack[SamplingParamsDict]
    ) -> list[str]: ...

    def translate(
        self: TaskModel, text: str | Sequence[str], to: str, **decoding: Unpack[SamplingParamsDict]
    ) -> str | list[str]:
        """Translate a text, or a list of texts, sentence by sentence: `load("en-fr").translate("Hi.",
        to="fr")`. `decoding` are fields of `SamplingParams`, such as `beams=4`."""
        from glassgpt.tasks.translate import translate

        translations = [result.text for result in translate(self, _as_texts(text), to, **decoding)]
        return translations[0] if isinstance(text, str) else translations

    @overload
    def summarize(  # type: ignore[overload-overlap]
        self: TaskModel,
        text: str,
        sentences: int | None = None,
        *,
        abstract: bool | None = None,
        **decoding: Unpack[SamplingParamsDict],
    ) -> str: ...

    @overload
    def summarize(
        self: TaskModel,
        text: Sequence[str],
        sentences: int | None = None,
        *,
        abstract: bool | None = None,
        **decoding: Unpack[SamplingParamsDict],
    ) -> list[str]: ...

    def summarize(
        self: TaskModel,
        text: str | Sequence[str],
        sentences: int | None = None,
        *,
        abstract: bool | None = None,
        **decoding: Unpack[SamplingParamsDict],
    ) -> str | list[str]:
        """Summarize a text, or a list of texts, by `sentences` (3) of its own, chosen by the model's scores.

        With `abstract=True` the model writes the summary: by its own task, or zero-shot after `TL;DR:`. This
        is the default only for a model tuned for summaries, since a small model invents facts. `decoding`
        are fields of `SamplingParams`. `tasks.summarize` also returns which sentences were chosen, or which
        part of a long text was read.
        """
        from glassgpt.tasks.summarize import summarize

        results = summarize(self, _as_texts(text), sentences=sentences, abstract=abstract, **decoding)
        summaries = [result.text for result in results]
        return summaries[0] if isinstance(text, str) else summaries

    @overload
    def classify(  # type: ignore[overload-overlap]
        self: TaskModel, text: str, labels: Sequence[str] | None = None, format: str | None = None
    ) -> Label: ...

    @overload
    def classify(
        self: TaskModel, text: Sequence[str], labels: Sequence[str] | None = None, format: str | None = None
    ) -> list[Label]: ...

    def classify(
        self: TaskModel,
        text: str | Sequence[str],
        labels: Sequence[str] | None = None,
        format: str | None = None,
    ) -> Label | list[Label]:
        """The label of a text, or of each of a list, with probabilities: by the head of a tuned model, or
        zero-shot among `labels`."""
        from glassgpt.tasks.classify import classify

        results = classify(self, _as_texts(text), labels=labels, format=format)
        return results[0] if isinstance(text, str) else results


def _as_texts(text: str | Sequence[str]) -> list[str]:
    texts = [text] if isinstance(text, str) else list(text)
    for number, value in enumerate(texts, start=1):
        if not isinstance(value, str) or not value.strip():
            problem = "empty" if isinstance(value, str) else f"a {type(value).__name__}, not a text"
            raise SettingError(f"text {number} is {problem}. Give a text, or a list of texts.")
    return texts
