"""What a model does besides continuing text, as methods of `GPT`: the way into `glassgpt.tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack, overload

from glassgpt.errors import SettingError
from glassgpt.generate.sampling.params import SamplingParamsDict

if TYPE_CHECKING:
    from glassgpt.gpt import GPT
    from glassgpt.tasks.classify import Label


@overload
def translate(  # type: ignore[overload-overlap]  # a str is a sequence of str
    self: GPT, text: str, to: str, **decoding: Unpack[SamplingParamsDict]
) -> str: ...


@overload
def translate(
    self: GPT, text: Sequence[str], to: str, **decoding: Unpack[SamplingParamsDict]
) -> list[str]: ...


def translate(
    self: GPT, text: str | Sequence[str], to: str, **decoding: Unpack[SamplingParamsDict]
) -> str | list[str]:
    """Translate a text, or a list of texts, sentence by sentence: `load("en-fr").translate("Hi.",
    to="fr")`. `decoding` are fields of `SamplingParams`, such as `beams=4`."""
    from glassgpt.tasks.translate import translate

    made = [one.text for one in translate(self, _as_texts(text), to, **decoding)]
    return made[0] if isinstance(text, str) else made


@overload
def summarize(  # type: ignore[overload-overlap]
    self: GPT,
    text: str,
    sentences: int | None = None,
    *,
    abstract: bool | None = None,
    **decoding: Unpack[SamplingParamsDict],
) -> str: ...


@overload
def summarize(
    self: GPT,
    text: Sequence[str],
    sentences: int | None = None,
    *,
    abstract: bool | None = None,
    **decoding: Unpack[SamplingParamsDict],
) -> list[str]: ...


def summarize(
    self: GPT,
    text: str | Sequence[str],
    sentences: int | None = None,
    *,
    abstract: bool | None = None,
    **decoding: Unpack[SamplingParamsDict],
) -> str | list[str]:
    """Summarize a text, or a list of texts, by `sentences` (3) of its own, chosen by the model's scores.

    With `abstract=True` the model writes: by its own task, or zero-shot after `TL;DR:`; `decoding` are fields
    of `SamplingParams`. A small model invents facts. That is the default of a model tuned for summaries only.
    `tasks.summarize` also says which sentences they are, or which part of a long text was seen.
    """
    from glassgpt.tasks.summarize import summarize

    made = summarize(self, _as_texts(text), sentences=sentences, abstract=abstract, **decoding)
    return made[0].text if isinstance(text, str) else [one.text for one in made]


@overload
def classify(  # type: ignore[overload-overlap]
    self: GPT, text: str, labels: Sequence[str] | None = None, format: str | None = None
) -> Label: ...


@overload
def classify(
    self: GPT, text: Sequence[str], labels: Sequence[str] | None = None, format: str | None = None
) -> list[Label]: ...


def classify(
    self: GPT, text: str | Sequence[str], labels: Sequence[str] | None = None, format: str | None = None
) -> Label | list[Label]:
    """The label of a text, or of each of a list, with probabilities: by the head of a tuned model, or
    zero-shot among `labels`."""
    from glassgpt.tasks.classify import classify

    made = classify(self, _as_texts(text), labels=labels, format=format)
    return made[0] if isinstance(text, str) else made


def _as_texts(text: str | Sequence[str]) -> list[str]:
    texts = [text] if isinstance(text, str) else list(text)
    for number, one in enumerate(texts, start=1):
        if not isinstance(one, str) or not one.strip():
            what = "empty" if isinstance(one, str) else f"a {type(one).__name__}, not a text"
            raise SettingError(f"text {number} is {what}. Give a text, or a list of texts.")
    return texts
