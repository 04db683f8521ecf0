"""Translation: a text is translated sentence by sentence, and put together again with its line breaks.

The model learned single sentences, so it is given single sentences; a batch of them is computed together.
"""

from __future__ import annotations

import dataclasses
import re
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
    from glassgpt.tasks.task_model import TaskModel

# French text comes with several kinds of spaces and apostrophes; the model knows one of each.
_SIGNS = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'", "\u2018": "'"})

_LINK = re.compile(r"(?:https?://|www\.).+")


@dataclass(frozen=True)
class Sentence:
    """What the model is given of a sentence, and what stays as it is. It learned plain sentences: of numbers,
    addresses, capitals and emoji it would make other words."""

    source: str  # empty: there is nothing to translate
    rest: str = ""  # all of such a sentence, or the emoji after it
    capitals: bool = False

    @classmethod
    def of(cls, text: str) -> Sentence:
        if not any(c.isalpha() for word in text.split() for c in without_address(word)):
            return cls("", text)
        end = len(text)
        while unicodedata.category(text[end - 1]) in ("So", "Sk", "Mn", "Cf", "Zs"):
            end -= 1
        text, rest = text[:end], text[end:]
        capitals = text.isupper() and len(text.split()) > 1  # one word may be a name, as NATO is
        return cls(text.capitalize() if capitals else text, rest, capitals)

    def finish(self, translation: str) -> str:
        return translation.upper() if self.capitals else translation


@dataclass(frozen=True)
class Translation:
    """A translated text."""

    text: str
    to: str
    sentences: list[Output]
    notes: list[str] = field(default_factory=list)


def without_address(word: str) -> str:
    """What is left of a word without a link or e-mail address. An expression for both, `\\S+@\\S+\\.\\S+`,
    would try every way to cut a long word of @ in three."""
    at = word.find("@", 1)
    if at > 0 and word.find(".", at + 2, len(word) - 1) > 0:
        return ""
    return _LINK.sub("", word)


def clean(text: str) -> str:
    """As the model's own data was written."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_SIGNS).split())


def translation_task(gpt: TaskModel, to: str) -> Task:
    """The model's task, if it translates into this language."""
    task = gpt.task
    if task is None or not any(direction.name for direction in task.directions):
        raise SettingError(
            f"{gpt.name} is not a translator: its folder has no task.toml with directions. "
            "Use --model en-fr, or train one: docs/tasks.md"
        )
    task.direction(to)
    return task


def translate(
    gpt: TaskModel, texts: Sequence[str], to: str, *, sentences: bool = True, **decoding: Any
) -> list[Translation]:
    """Translate texts. `sentences=False` gives the model each line whole; `decoding` is as for `generate`."""
    task = translation_task(gpt, to)
    encoder = make_encoder(gpt, task, to)
    plans = [plan(text, encoder, sentences) for text in texts]
    sources = [one.source for lines in plans for line in lines for one in line if one.source]
    made = iter(run_task(gpt, task, sources, to, **decoding) if sources else [])
    results = []
    for text, lines in zip(texts, plans, strict=True):
        done = [[as_output(one, next(made) if one.source else None) for one in line] for line in lines]
        joined = "\n".join(" ".join(one.text for one in line) for line in done)
        outputs = [one for line in done for one in line]
        results.append(Translation(joined, to, outputs, remarks(task, text, to, outputs)))
    return results


def as_output(sentence: Sentence, made: Output | None) -> Output:
    """What was made of a sentence, with what stays of it; None where the model was not asked."""
    if made is None:
        return Output(sentence.rest, 0, 0, "stop")
    return dataclasses.replace(made, text=sentence.finish(made.text) + sentence.rest)


def plan(text: str, encoder: Encoder, sentences: bool = True) -> list[list[Sentence]]:
    """The lines of a text, each as its sentences. One that does not fit is split more loosely."""
    lines = [clean(line) for line in text.splitlines()] if text.strip() else []
    if not sentences:
        return [[Sentence.of(line)] if line else [] for line in lines]
    return [
        [
            Sentence.of(part)
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

    def __init__(self, gpt: TaskModel, text: str, to: str, sentences: bool = True, **decoding: Any) -> None:
        self.task = translation_task(gpt, to)
        self.encoder = make_encoder(gpt, self.task, to)
        self.settings = self.task.settings(**decoding)
        self.notes: list[str] = []
        self._pieces = self._run(gpt, text, to, sentences)

    def __next__(self) -> str:
        return next(self._pieces)

    def _run(self, gpt: TaskModel, text: str, to: str, sentences: bool) -> Iterator[str]:
        seen: list[Prompt] = []
        for number, line in enumerate(plan(text, self.encoder, sentences)):
            if number:
                yield "\n"
            for at, sentence in enumerate(line):
                if at:
                    yield " "
                if sentence.source:
                    seen.append(self.encoder.prompt(sentence.source))
                    pieces = stream_task(gpt, self.task, seen[-1], self.settings)
                    yield from map(sentence.finish, pieces)
                yield sentence.rest
        self.notes += remarks(self.task, text, to, seen)
