"""What a model opens with: example prompts in its own format, and the tokens that no text can spell.

A model of text opens with sentences, one with a task (`task.toml`) with prompts of that task, a model of
music with a phrase. "Text is text": special tokens enter a prompt by their ids only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glassgpt.explorer.models import Model
from glassgpt.tasks.definition import Task
from glassgpt.tasks.encode import Encoder
from glassgpt.tokenizer import EventTokenizer


@dataclass(frozen=True)
class PromptExample:
    """A prompt, as text or as ids, and what else the page shows with it."""

    key: str  # of its name and words in the page's languages
    name: str
    words: str  # what there is to see
    text: str | None = None
    ids: list[int] | None = None
    state: dict[str, Any] = field(default_factory=dict)


TEXTS = (
    PromptExample(
        "law", "A law of robotics", "what does “it” look back at?", "A robot must obey the orders given it"
    ),
    PromptExample(
        "references",
        "Three references",
        "“it”, “such orders” and “the First Law” mean something only with what came before",
        "A robot must obey the orders given it by people, unless such orders would break the First Law",
    ),
    PromptExample(
        "she",
        "Who is she?",
        "pronouns look for their names",
        "Mary told John that she had lost her keys, and he said that he would help",
    ),
    PromptExample(
        "repeated",
        "Something repeated",
        "induction: what followed last time follows again",
        "one two three four one two three four one two",
    ),
    PromptExample(
        "capital",
        "A capital",
        "a pattern to continue",
        "The capital of France is Paris. The capital of Germany is",
    ),
    PromptExample(
        "program",
        "A small program",
        "brackets and names",
        "for i in range(10):\n    print(i)\nfor j in range(",
    ),
    PromptExample(
        "languages", "Many languages", "rare letters become bytes", "Guten Tag, bonjour, привет, こんにちは"
    ),
    PromptExample(
        "rambling",
        "Rambling",
        "no text at all: the model begins a document of its own",
        "",
        state={"view": "next", "temperature": 0.8, "topK": 40},
    ),
)

# C, E, G and C again, then a tune over a held chord.
ARPEGGIO = (
    "VELOCITY_20 NOTE_ON_60 TIME_SHIFT_50 NOTE_ON_64 TIME_SHIFT_50 NOTE_ON_67 TIME_SHIFT_50 VELOCITY_24 "
    "NOTE_ON_72 TIME_SHIFT_100 NOTE_OFF_60 NOTE_OFF_64 NOTE_OFF_67 NOTE_OFF_72"
)
TUNE = (
    "VELOCITY_16 NOTE_ON_48 NOTE_ON_55 VELOCITY_22 NOTE_ON_64 TIME_SHIFT_40 NOTE_OFF_64 NOTE_ON_67 "
    "TIME_SHIFT_40 NOTE_OFF_67 NOTE_ON_72 TIME_SHIFT_80 NOTE_OFF_48 NOTE_OFF_55 NOTE_OFF_72 VELOCITY_16 "
    "NOTE_ON_53 NOTE_ON_57 VELOCITY_22 NOTE_ON_72 TIME_SHIFT_40 NOTE_OFF_72 NOTE_ON_69 TIME_SHIFT_40 "
    "NOTE_OFF_69 NOTE_ON_65 TIME_SHIFT_80 NOTE_OFF_53 NOTE_OFF_57 NOTE_OFF_65"
)
MUSIC = (
    PromptExample("chord", "A broken chord", "C, E, G and C: which event comes next?", ARPEGGIO),
    PromptExample("tune", "A tune over two chords", "the end looks back at the beginning", TUNE),
)

NEXT = {"view": "next"}
ARTICLE = (
    "The lighthouse on the island was built in 1874 after a winter in which four ships were lost on the "
    "rocks. It is made of granite that was cut on the mainland and brought over by barge, and its lamp first "
    "burned oil. Keepers lived in the tower with their families until 1968, when the light was made electric "
    "and began to run by itself. Today the island has no inhabitants, and the tower is open to visitors in "
    "summer."
)


@dataclass(frozen=True)
class TaskExample:
    """A record of a task: its source, and its target where the whole text is shown."""

    key: str
    name: str
    words: str
    source: str
    direction: str | None = None
    target: str = ""
    state: dict[str, Any] = field(default_factory=lambda: NEXT)


LOOK = {"view": "heads"}
TASKS = {
    "en-fr": (
        TaskExample(
            "french", "To French", "press 1 again and again, or Write it out", "I am a student.", "fr"
        ),
        TaskExample("longer", "A longer sentence", "word order changes", "Where is the red house?", "fr"),
        TaskExample("english", "To English", "the same model, the other way", "Je suis étudiant.", "en"),
        TaskExample(
            "half",
            "Half translated",
            "heads look at the word that will be written next: a diagonal",
            "The robot obeys the orders of the man.",
            "fr",
            "Le robot obéit aux",
            LOOK,
        ),
    ),
    "summarize": (
        TaskExample("lighthouse", "A lighthouse", "a text, a separator, and then its summary", ARTICLE),
        TaskExample(
            "sentence", "One sentence", "short enough to see every head", ARTICLE.partition(". ")[0] + "."
        ),
    ),
}


def examples_json(model: Model) -> dict[str, Any]:
    """The examples of a model, the first of which it opens with, and what can be inserted into a text."""
    kind, examples = find_examples(model)
    return {
        "kind": kind,
        "examples": [
            {
                "key": one.key,
                "name": one.name,
                "words": one.words,
                "text": one.text,
                "ids": one.ids,
                "state": one.state,
            }
            for one in examples
        ],
        "inserts": inserts(model),
    }


def find_examples(model: Model) -> tuple[str, list[PromptExample]]:
    """What the model reads ("text", "task", "music" or "ids"), and prompts for it."""
    if model.tokenizer is None:
        return "ids", [PromptExample("ids", "The first ids", "a model without a tokenizer", "0 1 2 3")]
    if isinstance(model.tokenizer, EventTokenizer):
        return "music", list(MUSIC)
    task = model.gpt.task
    if task is not None and task.name in TASKS and not task.classifies:
        return "task", [task_example(model, task, one) for one in TASKS[task.name]]
    return "text", list(TEXTS)


def task_example(model: Model, task: Task, example: TaskExample) -> PromptExample:
    """The record in the task's format; with its target, without the end."""
    encoder = encoder_of(model, task, example.direction)
    ids = encoder.prompt(example.source).ids
    if example.target:
        ids = [*ids, *encoder.tokenizer.encode(encoder.lead + example.target)]
    return PromptExample(example.key, example.name, example.words, None, ids, example.state)


def encoder_of(model: Model, task: Task, direction: str | None) -> Encoder:
    assert model.tokenizer is not None
    return Encoder(task, model.tokenizer, model.gpt.backend.context, direction)


def inserts(model: Model) -> list[dict[str, Any]]:
    """Special tokens, and a task's separator that is made of ordinary ones."""
    if model.tokenizer is None:
        return []
    tokens_to_insert = [
        {"name": name, "ids": [id], "special": True}
        for name, id in model.tokenizer.special_tokens.items()
        if id < model.n_tokens
    ]
    task = model.gpt.task
    if task is not None and not task.classifies and not task.tokens:
        separator = encoder_of(model, task, None).separator
        tokens_to_insert.append({"name": model.decode(separator).strip(), "ids": separator, "special": False})
    return tokens_to_insert
