"""Summaries that any program can write, which a model has to beat: sentences of the text itself.

`lead` takes the first sentences, `random_sentences` any, and `best_sentence` the one with the highest ROUGE-L
against the reference: it has seen the answer, and is the best that an extractive system could reach with one
sentence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from glassgpt.evaluate.generated import rouge
from glassgpt.tasks.sentences import first_sentences, split_sentences

KINDS = ("rouge1", "rouge2", "rougeL")


def lead(text: str, sentences: int = 3) -> str:
    return first_sentences(text, sentences)


def random_sentences(text: str, draw: random.Random, sentences: int = 3) -> str:
    """Some sentences of the text, in its order."""
    parts = split_sentences(text)
    chosen = sorted(draw.sample(range(len(parts)), min(sentences, len(parts))))
    return " ".join(parts[i] for i in chosen)


def best_sentence(text: str, reference: str, scorer: Any) -> str:
    """The sentence with the highest ROUGE-L against the reference."""
    return max(
        split_sentences(text),
        key=lambda sentence: scorer.score(reference, sentence)["rougeL"].fmeasure,
        default="",
    )


def baselines(texts: Sequence[str], references: Sequence[str], seed: int = 0) -> dict[str, dict[str, float]]:
    """ROUGE of each kind of baseline."""
    from rouge_score.rouge_scorer import RougeScorer

    draw, scorer = random.Random(seed), RougeScorer(["rougeL"], use_stemmer=True)
    summaries = {
        "lead-3": [lead(text) for text in texts],
        "lead-1": [lead(text, 1) for text in texts],
        "random-3": [random_sentences(text, draw) for text in texts],
        "best sentence": [best_sentence(t, r, scorer) for t, r in zip(texts, references, strict=True)],
    }
    return {name: rouge(some, references, KINDS) for name, some in summaries.items()}
