"""The Children's Book Test: twenty sentences, then one with a word missing, and ten words to choose from.

The paper's rule: the choice is the word that makes itself *and the rest of the sentence* likeliest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.errors import FileFormatError
from glassgpt.evaluate.choice import Question, prepare_questions
from glassgpt.evaluate.datasets import Dataset
from glassgpt.evaluate.detokenise import childrens_books
from glassgpt.evaluate.metrics import ACCURACY, Measure
from glassgpt.evaluate.score_cache import Scores
from glassgpt.evaluate.task import Prepared, Reader, lines_of

BLANK = "XXXXX"


@dataclass(frozen=True)
class ChildrensBooks:
    name: str
    dataset: Dataset

    def prepare(self, text: str, reader: Reader) -> Prepared:
        return prepare_questions(self.name, read_questions(text), reader, self.figures)

    def figures(self, questions: list[Question], scores: Sequence[Sequence[Scores]]) -> list[Measure]:
        right = [
            float(np.argmax([one.total for one in found]) == question.gold)
            for question, found in zip(questions, scores, strict=True)
        ]
        protocol = "paper: word and rest of the sentence"
        return [Measure(f"{self.name}.accuracy", protocol, ACCURACY, np.array(right), np.ones(len(right)))]


def read_questions(text: str) -> list[Question]:
    """The published format: numbered lines; the 21st holds question, answer and choices, by tabs."""
    questions, story = [], []
    for number, line in enumerate(lines_of(text), start=1):
        _, _, content = line.partition(" ")
        if "\t" not in content:
            if content:
                story.append(content)
            continue
        fields = content.split("\t")
        sentence, answer, choices = fields[0], fields[1], [word for word in fields[-1].split("|") if word]
        before, gap, after = sentence.partition(BLANK)
        if not gap or answer not in choices:
            raise FileFormatError(f"line {number} is no question of this test: {line[:60]}")
        questions.append(_question([*story, before], choices, after, choices.index(answer)))
        story = []
    return questions


def _question(before: list[str], choices: list[str], after: str, gold: int) -> Question:
    """Each choice is detokenised in its place, for the blanks around a word depend on the word."""
    context = childrens_books(" ".join(before)).rstrip()
    pairs = []
    for choice in choices:
        whole = childrens_books(" ".join(before) + choice + after)
        kept = 0
        while kept < min(len(context), len(whole)) and context[kept] == whole[kept]:
            kept += 1
        pairs.append((whole[:kept].rstrip(), whole[len(whole[:kept].rstrip()) :]))
    return Question(pairs, gold)
