"""Translation: a text is translated sentence by sentence, and put together again with its line breaks.

The model learned single sentences, so it gets single sentences; a batch of them is computed together.
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
from glassgpt.tasks.generate import Output, make_encoder, run_prompts, stream_task
from glassgpt.tasks.language import other_language, why_not
from glassgpt.tasks.sentences import split_sentences

if TYPE_CHECKING:
    from glassgpt.tasks.task_model import TaskModel

# French text comes with several kinds of spaces and apostrophes; the model knows one of each.
_SIGNS = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'", "\u2018": "'"})

_LINK = re.compile(r"(?:https?://|www\.).+")


@dataclass(frozen=True)
class Sentence:
    """The part of a sentence that the model gets, and the part that stays unchanged. It learned plain
    sentences: it would turn numbers, addresses, capitals and emoji into other words."""

    source: str  # empty if there is nothing to translate
    rest: str = ""  # the whole sentence then, or the emoji after it
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
    """A word without a link or e-mail address in it. An expression for both, `\\S+@\\S+\\.\\S+`,
    would try every way to cut a long word of @ in three."""
    at = word.find("@", 1)
    if at > 0 and word.find(".", at + 2, len(word) - 1) > 0:
        return ""
    return _LINK.sub("", word)


def clean(text: str) -> str:
    """Normalize a text as the model's training data was."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_SIGNS).split())


def translation_task(gpt: TaskModel, to: str) -> Task:
    """The model's task, if it translates into this language."""
    task = gpt.task
    if task is None or not any(direction.name for direction in task.directions):
        raise SettingError(
            f"{gpt.name} is not a translation model: its folder has no task.toml with directions. "
            "Use --model en-fr, or train one: docs/tasks.md"
        )
    task.direction(to)
    return task


def translate(
    gpt: TaskModel, texts: Sequence[str], to: str, *, sentences: bool = True, **decoding: Any
) -> list[Translation]:
    """Translate texts. `sentences=False` gives the model each line whole; `decoding` is as for `generate`."""
    return Translator(gpt, to, sentences, **decoding).translate(texts)


class Translator:
    """Translates into one language, with a task and an encoder that are built once."""

    def __init__(self, gpt: TaskModel, to: str, sentences: bool = True, **decoding: Any) -> None:
        self.gpt, self.to, self.sentences, self.decoding = gpt, to, sentences, decoding
        self.task = translation_task(gpt, to)
        self.encoder = make_encoder(gpt, self.task, to)
        self.settings = self.task.settings(**decoding)

    def translate(self, texts: Sequence[str]) -> list[Translation]:
        """Translate texts, all their sentences in one batch."""
        plans = [list(plan(text, self.encoder, self.sentences)) for text in texts]
        sources = [
            part.source for parts in plans for part in parts if isinstance(part, Sentence) and part.source
        ]
        prompts = [self.encoder.prompt(source) for source in sources]
        written = iter(run_prompts(self.gpt, self.task, prompts, self.settings) if prompts else [])
        translations = []
        for text, parts in zip(texts, plans, strict=True):
            pieces: list[str] = []
            outputs: list[Output] = []
            for part in parts:
                if isinstance(part, Sentence):
                    outputs.append(as_output(part, next(written) if part.source else None))
                    pieces.append(outputs[-1].text)
                else:
                    pieces.append(part)
            notes = remarks(self.task, text, self.to, outputs)
            translations.append(Translation("".join(pieces), self.to, outputs, notes))
        return translations

    def into(self, to: str) -> Translator:
        """The same for another language."""
        return self if to == self.to else Translator(self.gpt, to, self.sentences, **self.decoding)

    def stream(self, text: str) -> TranslationStream:
        return TranslationStream(self, text)


class TranslationStream(Iterator[str]):
    """The pieces of a translation as they come; afterwards `notes` holds the remarks."""

    def __init__(self, translator: Translator, text: str) -> None:
        self.notes: list[str] = []
        self._pieces = self._run(translator, text)

    def __next__(self) -> str:
        return next(self._pieces)

    def _run(self, translator: Translator, text: str) -> Iterator[str]:
        task, encoder = translator.task, translator.encoder
        prompts: list[Prompt] = []
        for part in plan(text, encoder, translator.sentences):
            if not isinstance(part, Sentence):
                yield part
                continue
            if part.source:
                prompts.append(encoder.prompt(part.source))
                yield from map(
                    part.finish, stream_task(translator.gpt, task, prompts[-1], translator.settings)
                )
            yield part.rest
        self.notes += remarks(task, text, translator.to, prompts)


def as_output(sentence: Sentence, output: Output | None) -> Output:
    """The output for a sentence, with the rest of it; without one where the model was not asked."""
    if output is None:
        return Output(sentence.rest, 0, 0, "stop")
    return dataclasses.replace(output, text=sentence.finish(output.text) + sentence.rest)


def plan(text: str, encoder: Encoder, sentences: bool = True) -> Iterator[Sentence | str]:
    """A text as its sentences, and the white space between them and between its lines. A sentence that does
    not fit is split more loosely."""
    for number, line in enumerate(text.splitlines() if text.strip() else []):
        if number:
            yield "\n"
        for at, part in enumerate(split_line(clean(line), encoder) if sentences else [clean(line)]):
            if at:
                yield " "
            if part:
                yield Sentence.of(part)


def split_line(line: str, encoder: Encoder) -> Iterator[str]:
    for sentence in split_sentences(line):
        yield from [sentence] if encoder.fits(sentence) else split_sentences(sentence, loosely=True)


def remarks(task: Task, text: str, to: str, seen: Sequence[Output] | Sequence[Prompt]) -> list[str]:
    """What a reader should know about a translation."""
    notes = []
    expected = task.direction(to).source
    wrong = why_not(text, expected)
    if wrong is not None:
        hint = f" (--to {expected} translates it)" if other_language(text, expected) == to else ""
        notes.append(f"the text {wrong}{hint}")
    for sentence in seen:
        if sentence.was_cut:
            notes.append(
                f"a sentence has {sentence.source_tokens} tokens, too many: the model saw "
                f"{sentence.kept_tokens}"
            )
    return notes
