"""Multiple choice: the model's answer is the choice with the highest log-likelihood.

Two forms: one context followed by each of the choices, or several contexts followed by the same continuation
(Winograd schemas: a pronoun is replaced by each candidate, and the rest of the sentence is scored). The
prompts are those of lm-evaluation-harness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glassgpt.backends.protocol import TokenScores
from glassgpt.errors import FileFormatError
from glassgpt.evaluate.metrics import ACCURACY, MetricResult
from glassgpt.evaluate.scoring.windows import Group
from glassgpt.evaluate.suites.datasets import Dataset
from glassgpt.evaluate.suites.eval_task import (
    NotScorable,
    PreparedTask,
    WindowBuilder,
    document_note,
)
from glassgpt.files.text import parse_json_lines


@dataclass(frozen=True)
class Question:
    pairs: list[tuple[str, str]]  # (context, continuation) of each choice
    gold: int
    lengths: list[int] = field(default_factory=list)  # characters of each choice, for acc_norm


@dataclass(frozen=True)
class Choice:
    """`read` turns a record into a question; `normalized` adds acc_norm, by log-likelihood per character."""

    name: str
    dataset: Dataset
    read: Callable[[dict[str, Any]], Question]
    normalized: bool = True

    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask:
        return prepare_questions(self.name, self.questions(text), builder, self.compute_metrics)

    def questions(self, text: str) -> list[Question]:
        questions = []
        for number, line, record in parse_json_lines(text):
            try:
                questions.append(self.read(record))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError):
                raise FileFormatError(f"line {number} is not a record of {self.name}: {line[:60]}") from None
        return questions

    def compute_metrics(
        self, questions: list[Question], scores: Sequence[Sequence[TokenScores]]
    ) -> list[MetricResult]:
        right, right_normalized = [], []
        for question, choices in zip(questions, scores, strict=True):
            totals = np.array([choice.total for choice in choices])
            right.append(float(totals.argmax() == question.gold))
            if self.normalized:
                per_character = totals / np.array(question.lengths)
                right_normalized.append(float(per_character.argmax() == question.gold))
        ones = np.ones(len(right))
        results = [
            MetricResult(f"{self.name}.acc", "highest log-likelihood", ACCURACY, np.array(right), ones)
        ]
        if self.normalized:
            results.append(
                MetricResult(
                    f"{self.name}.acc_norm",
                    "highest per character",
                    ACCURACY,
                    np.array(right_normalized),
                    ones,
                )
            )
        return results


def prepare_questions(
    name: str,
    questions: Sequence[Question],
    builder: WindowBuilder,
    compute_metrics: Callable[[list[Question], Sequence[Sequence[TokenScores]]], list[MetricResult]],
) -> PreparedTask:
    """Windows for every choice of every question. A question with an empty choice is skipped."""
    kept: list[Question] = []
    groups: list[Group] = []
    sizes: list[list[int]] = []  # windows per choice: more than one if it exceeds the context
    odd, cut = [], []
    for number, question in enumerate(questions[: builder.limit], start=1):
        try:
            continuations = [builder.continuation(*pair) for pair in question.pairs]
        except NotScorable:
            odd.append(number)
            continue
        choices = [windows for windows, _ in continuations]
        if any(truncated for _, truncated in continuations):
            cut.append(number)
        kept.append(question)
        groups.append([window for windows in choices for window in windows])
        sizes.append([len(windows) for windows in choices])
    if not groups:
        raise NotScorable(f"{name}: the file contains no question")

    def by_choice(scores: Sequence[Sequence[TokenScores]]) -> list[MetricResult]:
        joined = []
        for question_scores, counts in zip(scores, sizes, strict=True):
            rest = iter(question_scores)
            joined.append([_join([next(rest) for _ in range(count)]) for count in counts])
        return compute_metrics(kept, joined)

    notes = document_note(odd, "skipped: empty choice")
    notes += document_note(cut, f"truncated on the left to the context of {builder.n_positions} tokens")
    return PreparedTask(groups, by_choice, notes)


def _join(parts: list[TokenScores]) -> TokenScores:
    return parts[0] if len(parts) == 1 else TokenScores(*map(np.concatenate, zip(*parts, strict=True)))


def one_context(context: str, choices: Sequence[str], gold: int) -> Question:
    return Question([(context, " " + choice) for choice in choices], gold, [len(c) for c in choices])


def one_ending(contexts: Sequence[str], ending: str, gold: int) -> Question:
    return Question([(context, ending) for context in contexts], gold)


# From records in llm-foundry's format to the prompts of lm-evaluation-harness.


def hellaswag(record: dict[str, Any]) -> Question:
    query = strip_brackets(record["query"])
    # The harness capitalizes the unfinished last sentence; the file has it in lower case.
    query = re.sub(r"(?<=[.!?] )[a-z][^.!?]*$", lambda rest: rest[0].capitalize(), query)
    return one_context(query, [strip_brackets(ending) for ending in record["endings"]], int(record["label"]))


def strip_brackets(text: str) -> str:
    """WikiHow's marks: a [title] starts a new sentence, other marks are dropped."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def question_and_answer(record: dict[str, Any]) -> Question:
    """PIQA and ARC: `Question: ...`, a line break, `Answer:`, and the choice."""
    return one_context(record["query"].rstrip("\n") + "\nAnswer:", record["choices"], int(record["gold"]))


def winogrande(record: dict[str, Any]) -> Question:
    return one_ending(record["context_options"], " " + record["continuation"], int(record["gold"]))


def wsc273(record: dict[str, Any]) -> Question:
    """Like WinoGrande, but the harness adds a space before an ending that already starts with one."""
    ending = record["continuation"]
    blanks = "  " if ending[:1].isalnum() else " "
    return one_ending(record["context_options"], blanks + ending, int(record["gold"]))
