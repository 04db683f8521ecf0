"""Questions with given answers: the answer that the model finds likeliest is its choice.

Two forms. Either one context is followed by each of the choices, or each of several contexts by the same
ending (Winograd schemas: a pronoun is replaced by what it may stand for; the rest of the sentence judges).
The prompts are those of lm-evaluation-harness.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glassgpt.errors import FileFormatError
from glassgpt.evaluate.datasets import Dataset
from glassgpt.evaluate.metrics import ACCURACY, Measure
from glassgpt.evaluate.score_cache import Scores
from glassgpt.evaluate.task import NotScorable, Prepared, Reader, left_out, lines_of
from glassgpt.evaluate.windows import Group


@dataclass(frozen=True)
class Question:
    pairs: list[tuple[str, str]]  # for each choice: the context, and what follows it
    gold: int
    lengths: list[int] = field(default_factory=list)  # characters of each choice, for the normalised score


@dataclass(frozen=True)
class Choice:
    """`read` makes a question of a record; `normalised` adds the accuracy by log-likelihood per character."""

    name: str
    dataset: Dataset
    read: Callable[[dict[str, Any]], Question]
    normalised: bool = True

    def prepare(self, text: str, reader: Reader) -> Prepared:
        return prepare_questions(self.name, self.questions(text), reader, self.figures)

    def questions(self, text: str) -> list[Question]:
        found = []
        for number, line in enumerate(lines_of(text), start=1):
            try:
                found.append(self.read(json.loads(line)))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError):
                raise FileFormatError(f"line {number} is no record of {self.name}: {line[:60]}") from None
        return found

    def figures(self, questions: list[Question], scores: Sequence[Sequence[Scores]]) -> list[Measure]:
        right, right_normalised = [], []
        for question, found in zip(questions, scores, strict=True):
            totals = np.array([one.total for one in found])
            right.append(float(totals.argmax() == question.gold))
            if self.normalised:
                per_character = totals / np.array(question.lengths)
                right_normalised.append(float(per_character.argmax() == question.gold))
        ones = np.ones(len(right))
        made = [Measure(f"{self.name}.acc", "likeliest choice", ACCURACY, np.array(right), ones)]
        if self.normalised:
            made.append(
                Measure(
                    f"{self.name}.acc_norm",
                    "likeliest per character",
                    ACCURACY,
                    np.array(right_normalised),
                    ones,
                )
            )
        return made


def prepare_questions(
    name: str,
    questions: Sequence[Question],
    reader: Reader,
    figures: Callable[[list[Question], Sequence[Sequence[Scores]]], list[Measure]],
) -> Prepared:
    """Rows for every choice of every question. A question with an empty choice is left out."""
    kept: list[Question] = []
    groups: list[Group] = []
    sizes: list[list[int]] = []  # rows of each choice: more than one where it is longer than the context
    odd, cut = [], []
    for number, question in enumerate(questions[: reader.limit], start=1):
        try:
            found = [reader.continuation(*pair) for pair in question.pairs]
        except NotScorable:
            odd.append(number)
            continue
        choices = [rows for rows, _ in found]
        if any(is_cut for _, is_cut in found):
            cut.append(number)
        kept.append(question)
        groups.append([row for rows in choices for row in rows])
        sizes.append([len(rows) for rows in choices])
    if not groups:
        raise NotScorable(f"{name}: there is no question in it")

    def by_choice(scores: Sequence[Sequence[Scores]]) -> list[Measure]:
        joined = []
        for found, counts in zip(scores, sizes, strict=True):
            rest = iter(found)
            joined.append([_join([next(rest) for _ in range(count)]) for count in counts])
        return figures(kept, joined)

    notes = left_out(odd, "left out, with an empty choice")
    notes += left_out(cut, f"cut at the beginning to the context of {reader.n_positions} tokens")
    return Prepared(groups, by_choice, notes)


def _join(parts: list[Scores]) -> Scores:
    return parts[0] if len(parts) == 1 else Scores(*map(np.concatenate, zip(*parts, strict=True)))


def one_context(context: str, choices: Sequence[str], gold: int) -> Question:
    return Question([(context, " " + choice) for choice in choices], gold, [len(c) for c in choices])


def one_ending(contexts: Sequence[str], ending: str, gold: int) -> Question:
    return Question([(context, ending) for context in contexts], gold)


# Records of the files in llm-foundry's form, to the prompts of lm-evaluation-harness.


def hellaswag(record: dict[str, Any]) -> Question:
    query = without_brackets(record["query"])
    # The harness writes the unfinished last sentence with a capital; the file has it in small letters.
    query = re.sub(r"(?<=[.!?] )[a-z][^.!?]*$", lambda rest: rest[0].capitalize(), query)
    return one_context(
        query, [without_brackets(ending) for ending in record["endings"]], int(record["label"])
    )


def without_brackets(text: str) -> str:
    """WikiHow's marks: a [title] begins a new sentence, other marks say nothing."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def question_and_answer(record: dict[str, Any]) -> Question:
    """PIQA and ARC: `Question: ...`, a line break, `Answer:`, and the choice."""
    return one_context(record["query"].rstrip("\n") + "\nAnswer:", record["choices"], int(record["gold"]))


def winogrande(record: dict[str, Any]) -> Question:
    return one_ending(record["context_options"], " " + record["continuation"], int(record["gold"]))


def wsc273(record: dict[str, Any]) -> Question:
    """As WinoGrande, but the harness puts its blank before an ending that has one of its own already."""
    ending = record["continuation"]
    blanks = "  " if ending[:1].isalnum() else " "
    return one_ending(record["context_options"], blanks + ending, int(record["gold"]))
