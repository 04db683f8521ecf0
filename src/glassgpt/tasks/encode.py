"""A record of a task to token ids: start, source, separator, target, end.

A source that is too long is cut to the room that the format and `max_target_tokens` leave: `keep` says
whether its `start`, its `end`, or half of `both` stays. A target longer than `max_target_tokens` is cut
there, without the end, so that a model does not learn to stop within a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from glassgpt.errors import SettingError
from glassgpt.tasks.definition import Direction, Task

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """The ids up to the target, and how much of the source they hold."""

    ids: list[int]
    source_tokens: int  # of the whole source
    kept_tokens: int

    @property
    def was_cut(self) -> bool:
        return self.kept_tokens < self.source_tokens


@dataclass(frozen=True)
class Example:
    """A record to learn from: the ids, where its target begins, and for a classifier the label's number."""

    ids: list[int]
    target_start: int
    label: int | None = None


class Encoder:
    """Encodes the records of one direction of a task for a model with a certain context."""

    def __init__(self, task: Task, tokenizer: Tokenizer, context: int, direction: str | None = None) -> None:
        self.task, self.tokenizer, self.context = task, tokenizer, context
        self.direction: Direction = task.direction(direction)
        # A single space before the target belongs to its first word: " word" is another token than "word".
        separator = self.direction.separator
        self.lead = " " if separator.endswith(" ") and not task.has_head else ""
        self.start = self._encode_role(self.direction.start)
        self.separator = self._encode_role(separator.removesuffix(" ") if self.lead else separator)
        self.end = self._encode_role(self.direction.end)
        self.target_room = 0 if task.has_head else self.max_target_tokens + len(self.end)
        self.room = context - len(self.start) - len(self.separator) - self.target_room
        if self.room < 1:
            raise SettingError(
                f"the model reads {context} tokens at a time, and {task.name} needs {context - self.room} "
                "for the target and the format alone. Choose a smaller max_target_tokens."
            )

    @cached_property
    def max_target_tokens(self) -> int:
        """For a classifier, the length of its longest label."""
        lengths = [len(self.tokenizer.encode(self.lead + label)) for label in self.task.labels]
        return max(lengths) if lengths else self.task.max_target_tokens

    def _encode_role(self, text: str) -> list[int]:
        """Text of the format, in which tokens are recognized."""
        return self.tokenizer.encode(text, True) if text else []

    def cut(self, source: list[int]) -> list[int]:
        """The part of a source that fits."""
        if len(source) <= self.room:
            return source
        if self.task.keep == "start":
            return source[: self.room]
        if self.task.keep == "end":
            return source[-self.room :]
        half = self.room // 2
        return source[: self.room - half] + source[len(source) - half :]

    def fits(self, source: str) -> bool:
        return len(self.tokenizer.encode(source)) <= self.room

    def prompt(self, source: str) -> Prompt:
        """The ids that the model continues with the target, or that a classifier reads."""
        ids = self.tokenizer.encode(source)
        kept = self.cut(ids)
        return Prompt([*self.start, *kept, *self.separator], len(ids), len(kept))

    def encode_target(self, target: str) -> list[int]:
        ids = self.tokenizer.encode(self.lead + target)
        fits = len(ids) <= self.max_target_tokens
        return [*ids, *self.end] if fits else ids[: self.max_target_tokens]

    def example(self, source: str, target: str) -> Example:
        """A record to learn from."""
        prompt = self.prompt(source).ids
        label = label_number(self.task, target) if self.task.labels else None
        if self.task.has_head:
            return Example(prompt, len(prompt), label)
        return Example([*prompt, *self.encode_target(target)], len(prompt))


def label_number(task: Task, label: str) -> int:
    if label not in task.labels:
        raise SettingError(f"the label {label!r} is not one of {', '.join(task.labels)}.")
    return task.labels.index(label)
