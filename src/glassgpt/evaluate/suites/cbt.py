"""The Children's Book Test: twenty sentences, then one with a word missing, and ten words to choose from.

The paper's protocol: the word with which it *and the rest of the sentence* are most likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.backends.protocol import TokenScores
from glassgpt.errors import FileFormatError
from glassgpt.evaluate.metrics import ACCURACY, MetricResult
from glassgpt.evaluate.suites.choice import Question, prepare_questions
from glassgpt.evaluate.suites.datasets import Dataset
from glassgpt.evaluate.suites.detokenize import childrens_books
from glassgpt.evaluate.suites.eval_task import PreparedTask, WindowBuilder, split_lines

BLANK = "XXXXX"


@dataclass(frozen=True)
class ChildrensBooks:
    name: str
    dataset: Dataset

    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask:
        return prepare_questions(self.name, read_questions(text), builder, self.compute_metrics)

    def compute_metrics(
        self, questions: list[Question], scores: Sequence[Sequence[TokenScores]]
    ) -> list[MetricResult]:
        right = [
            float(np.argmax([choice.total for choice in choices]) == question.gold)
            for question, choices in zip(questions, scores, strict=True)
        ]
        protocol = "paper: word and rest of the sentence"
        return [
            MetricResult(f"{self.name}.accuracy", protocol, ACCURACY, np.array(right), np.ones(len(right)))
        ]


def read_questions(text: str) -> list[Question]:
    """The published format: numbered lines; the 21st has question, answer and choices, separated by tabs."""
    questions, story = [], []
    for number, line in enumerate(split_lines(text), start=1):
        _, _, content = line.partition(" ")
        if "\t" not in content:
            if content:
                story.append(content)
            continue
        fields = content.split("\t")
        sentence, answer, choices = fields[0], fields[1], [word for word in fields[-1].split("|") if word]
        before, gap, after = sentence.partition(BLANK)
        if not gap or answer not in choices:
            raise FileFormatError(f"line {number} is not a question of this test: {line[:60]}")
        questions.append(_question([*story, before], choices, after, choices.index(answer)))
        story = []
    return questions


def _question(before: list[str], choices: list[str], after: str, gold: int) -> Question:
    """Each choice is detokenized in place: the spaces around a word depend on the word."""
    context = childrens_books(" ".join(before)).rstrip()
    pairs = []
    for choice in choices:
        full = childrens_books(" ".join(before) + choice + after)
        kept = 0
        while kept < min(len(context), len(full)) and context[kept] == full[kept]:
            kept += 1
        pairs.append((full[:kept].rstrip(), full[len(full[:kept].rstrip()) :]))
    return Question(pairs, gold)
