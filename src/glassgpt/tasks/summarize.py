"""Summaries: sentences of the text (extract.py), or a text that a model writes after it.

A model that was tuned for summaries writes them; any other can do so zero-shot, after `TL;DR:`. A small model
invents what it does not know, so extracts are the default for a model without a task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from glassgpt.errors import SettingError
from glassgpt.progress import Progress, no_progress
from glassgpt.tasks.definition import Task, load_task
from glassgpt.tasks.encode import Prompt
from glassgpt.tasks.extract import SENTENCES, Extract, extract
from glassgpt.tasks.generate import Output, run_task, stream_task
from glassgpt.tasks.sentences import complete_sentences, repetition_start, without_repetition

if TYPE_CHECKING:
    from glassgpt.generate.language_model import LanguageModel
    from glassgpt.generate.sampling.params import SamplingParams
    from glassgpt.tasks.task_model import TaskModel

ZERO_SHOT = "tldr"


def summary_task(gpt: TaskModel, zero_shot: bool = False, sentences: int | None = None) -> Task:
    """The model's own task; the GPT-2 paper's `TL;DR:` for a model without one, or with `zero_shot`."""
    check_summarizes(gpt, zero_shot)
    task = load_task(ZERO_SHOT) if zero_shot or gpt.task is None else gpt.task
    return task if sentences is None else dataclasses.replace(task, sentences=sentences)


def check_summarizes(gpt: TaskModel, zero_shot: bool = False) -> None:
    """A model that was tuned for something else has another vocabulary or another head."""
    task = gpt.task
    if task is not None and not zero_shot and (task.classifies or len(task.directions) > 1):
        raise SettingError(
            f"{gpt.name} was made for the task {task.name}, which writes no summaries. "
            "Use --model default, or any model without a task."
        )


def summarize(
    gpt: TaskModel,
    texts: Sequence[str],
    *,
    sentences: int | None = None,
    abstract: bool | None = None,
    zero_shot: bool = False,
    progress: Progress = no_progress,
    **decoding: Any,
) -> list[Output] | list[Extract]:
    """Summarize each text: with `sentences` (3) of its sentences, or with `abstract` in the model's words.

    By default a model writes if it was tuned for it. It sees only a part of a long text: see
    `Output.kept_tokens`.
    """
    if abstract is None:
        abstract = zero_shot or gpt.task is not None
    if abstract:
        task = summary_task(gpt, zero_shot, sentences)
        outputs = run_task(gpt, task, texts, **decoding)
        return [dataclasses.replace(output, text=without_repetition(output.text)) for output in outputs]
    check_summarizes(gpt)
    options = [*decoding, *(["zero_shot"] if zero_shot else [])]
    if options:
        raise SettingError(f"{options[0]} is for summaries that a model writes. Add abstract=True.")
    count = SENTENCES if sentences is None else sentences
    return [extract(gpt, text, count, progress) for text in texts]


def stream_summary(gpt: LanguageModel, task: Task, prompt: Prompt, settings: SamplingParams) -> Iterator[str]:
    """The summary a model writes, sentence by sentence, up to the one in which it begins to repeat itself."""
    unlimited = dataclasses.replace(task, sentences=None)
    seen: set[tuple[str, ...]] = set()
    written = complete_sentences(stream_task(gpt, unlimited, prompt, settings))
    for number, sentence in enumerate(islice(written, task.sentences)):
        if repetition_start(sentence, seen) is not None:
            yield without_repetition(sentence) if number == 0 else ""
            return
        yield f" {sentence}" if number else sentence


def describe_cut(task: Task, seen: Output | Prompt) -> str | None:
    """Which part of a long text the model saw; None if it saw all."""
    if not seen.was_cut:
        return None
    part = {"start": "the first", "end": "the last", "both": "the beginning and the end, together"}[task.keep]
    share = seen.kept_tokens / seen.source_tokens
    return (
        f"the text has {seen.source_tokens:,} tokens; the summary is of {part} {seen.kept_tokens:,} "
        f"({share:.0%})"
    )
