"""Translation: a text is translated sentence by sentence, and put together again with its line breaks.

The model learned single sentences, so it is given single sentences; a batch of them is computed together.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glassgpt.errors import SettingError
from glassgpt.tasks.definition import Task
from glassgpt.tasks.encode import Encoder, Prompt
from glassgpt.tasks.generate import Output, make_encoder, run_task, stream_task
from glassgpt.tasks.language import other_language, why_not
from glassgpt.tasks.sentences import split_sentences

if TYPE_CHECKING:
    from glassgpt.gpt import GPT

# French text comes with several kinds of spaces and apostrophes; the model knows one of each.
_SIGNS = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'", "\u2018": "'"})


@dataclass(frozen=True)
class Translation:
    """A translated text."""

    text: str
    to: str
    sentences: list[Output]
    notes: list[str] = field(default_factory=list)


def clean(text: str) -> str:
    """As the model's own data was written."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_SIGNS).split())


def translation_task(gpt: GPT, to: str) -> Task:
    """The model's task, if it translates into this language."""
    task = gpt.task
    if task is None or not any(direction.name for direction in task.directions):
        raise SettingError(
            f"{gpt.name} is no translator: its folder has no task.toml with directions. "
            "Use --model en-fr, or train one: docs/tasks.md"
        )
    task.direction(to)
    return task


def translate(
    gpt: GPT, texts: Sequence[str], to: str, *, sentences: bool = True, **decoding: Any
) -> list[Translation]:
    """Translate texts. `sentences=False` gives the model each line whole; `decoding` is as for `generate`."""
    task = translation_task(gpt, to)
    encoder = make_encoder(gpt, task, to)
    plans = [plan(text, encoder, sentences) for text in texts]
    flat = [sentence for lines in plans for line in lines for sentence in line]
    made = iter(run_task(gpt, task, flat, to, **decoding) if flat else [])
    results = []
    for text, lines in zip(texts, plans, strict=True):
        done = [[next(made) for _ in line] for line in lines]
        joined = "\n".join(" ".join(one.text for one in line) for line in done)
        outputs = [one for line in done for one in line]
        results.append(Translation(joined, to, outputs, remarks(task, text, to, outputs)))
    return results


def plan(text: str, encoder: Encoder, sentences: bool = True) -> list[list[str]]:
    """The lines of a text, each as its sentences. One that does not fit is split more loosely."""
    lines = [clean(line) for line in text.splitlines()] if text.strip() else []
    if not sentences:
        return [[line] if line else [] for line in lines]
    return [
        [
            part
            for sentence in split_sentences(line)
            for part in ([sentence] if encoder.fits(sentence) else split_sentences(sentence, loosely=True))
        ]
        for line in lines
    ]


def remarks(task: Task, text: str, to: str, seen: Sequence[Output] | Sequence[Prompt]) -> list[str]:
    """What a reader should know about a translation."""
    found = []
    expected = task.direction(to).source
    wrong = why_not(text, expected)
    if wrong is not None:
        hint = f" (--to {expected} translates it)" if other_language(text, expected) == to else ""
        found.append(f"the text {wrong}{hint}")
    for one in seen:
        if one.was_cut:
            found.append(
                f"a sentence has {one.source_tokens} tokens, too many: the model saw {one.kept_tokens}"
            )
    return found


class TranslationStream(Iterator[str]):
    """The pieces of a translation as they come; afterwards `notes` holds the remarks."""

    def __init__(self, gpt: GPT, text: str, to: str, sentences: bool = True, **decoding: Any) -> None:
        self.task = translation_task(gpt, to)
        self.encoder = make_encoder(gpt, self.task, to)
        self.settings = self.task.settings(**decoding)
        self.notes: list[str] = []
        self._pieces = self._run(gpt, text, to, sentences)

    def __next__(self) -> str:
        return next(self._pieces)

    def _run(self, gpt: GPT, text: str, to: str, sentences: bool) -> Iterator[str]:
        seen: list[Prompt] = []
        for number, line in enumerate(plan(text, self.encoder, sentences)):
            if number:
                yield "\n"
            for at, sentence in enumerate(line):
                if at:
                    yield " "
                seen.append(self.encoder.prompt(sentence))
                yield from stream_task(gpt, self.task, seen[-1], self.settings)
        self.notes += remarks(self.task, text, to, seen)
