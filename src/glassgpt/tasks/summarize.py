"""Summaries: by a model that was tuned for it, or zero-shot, by writing `TL;DR:` after the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgpt.errors import SettingError
from glassgpt.tasks.definition import Task, load_task
from glassgpt.tasks.encode import Prompt
from glassgpt.tasks.generate import Output, run_task

if TYPE_CHECKING:
    from glassgpt.gpt import GPT

ZERO_SHOT = "tldr"


def summary_task(gpt: GPT, zero_shot: bool = False) -> Task:
    """The model's own task; that of the GPT-2 paper for a model without one, or if it is asked for."""
    if zero_shot or gpt.task is None:
        return load_task(ZERO_SHOT)
    if gpt.task.classifies or len(gpt.task.directions) > 1:
        raise SettingError(
            f"{gpt.name} was made for the task {gpt.task.name}, which writes no summaries. "
            "Use --model summarize, or any model without a task."
        )
    return gpt.task


def summarize(gpt: GPT, texts: Sequence[str], *, zero_shot: bool = False, **decoding: Any) -> list[Output]:
    """A summary of each text. Of a long text the model sees a part: see `Output.kept_tokens`."""
    return run_task(gpt, summary_task(gpt, zero_shot), texts, **decoding)


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
