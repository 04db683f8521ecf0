"""LAMBADA: predict the last word of a passage, which takes the whole passage and not only its last sentence.

Published results differ in what is predicted (the last word, or only its last token) and in which words are
allowed (any, or only those that can end a sentence). One pass over the data gives all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.protocol import TokenScores
from glassgpt.errors import FileFormatError
from glassgpt.evaluate.metrics import ACCURACY, PERPLEXITY, MetricKind, MetricResult
from glassgpt.evaluate.suites.datasets import Dataset
from glassgpt.evaluate.suites.eval_task import (
    NotScorable,
    PreparedTask,
    WindowBuilder,
    document_note,
)
from glassgpt.files.text import parse_json_lines

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

# Function words, which rarely end a sentence. The paper says that a "stop-word filter" took the largest model
# from 52.66% to 63.24% without giving its list; this one is ours.
STOP_WORDS = frozenset(
    """a an the this that these those my your his her its our their whose which what who whom
    i you he she it we they me him us them myself yourself himself herself itself ourselves themselves
    and or but nor so yet if because as until while although though unless than whether
    of at by for with about against between into through during before after above below to from up down in
    out on off over under again upon within without toward towards among across along around behind beyond
    am is are was were be been being have has had having do does did doing will would shall should can could
    may might must ought
    not no only own same too very just also even still then there here when where why how all any both each
    few more most other some such every either neither
    s t d m re ve ll don doesn didn isn aren wasn weren hasn haven hadn won wouldn shouldn couldn""".split()
)


def stop_tokens(tokenizer: Tokenizer) -> list[int]:
    """The tokens that are a whole stop word, in any case, with or without a leading space."""
    tokens = []
    for token in range(tokenizer.text_size):
        if token != tokenizer.eot_id and tokenizer.decode([token]).strip().lower() in STOP_WORDS:
            tokens.append(token)
    return tokens


def read_passages(text: str) -> Iterable[str]:
    for number, _, record in parse_json_lines(text):
        try:
            passage = record["text"]
        except (KeyError, TypeError):
            raise FileFormatError(f'line {number} is not like {{"text": "..."}}') from None
        if not isinstance(passage, str):
            raise FileFormatError(f"line {number}: its text is {type(passage).__name__}, not a string")
        yield passage


@dataclass(frozen=True)
class Lambada:
    name: str
    dataset: Dataset
    harness: bool = False  # the two metrics of lm-evaluation-harness's lambada_openai, under its names

    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask:
        groups, empty, cut = [], [], []
        for number, passage in enumerate(read_passages(text), start=1):
            if builder.limit is not None and number > builder.limit:
                break
            context, blank, word = passage.rpartition(" ")  # at a space, not a newline: the harness's rule
            try:
                if not passage.strip():
                    raise NotScorable("it is empty")
                group, truncated = builder.continuation(context, blank + word, exclude=True)
            except NotScorable:
                empty.append(number)
                continue
            if truncated:
                cut.append(number)
            groups.append(group)
        if not groups:
            raise NotScorable(f"{self.name}: no passage has a last word to predict")
        notes = document_note(empty, "skipped: no last word to predict")
        notes += document_note(cut, f"truncated on the left to the context of {builder.n_positions} tokens")
        return PreparedTask(groups, self.compute_metrics, notes)

    def compute_metrics(self, scores: Sequence[Sequence[TokenScores]]) -> list[MetricResult]:
        words = [
            (parts[0].greedy_allowed[0], TokenScores(*map(np.concatenate, zip(*parts, strict=True))))
            for parts in scores
        ]
        ones = np.ones(len(words))

        def result(metric: str, protocol: str, kind: MetricKind, values: list[float]) -> MetricResult:
            return MetricResult(f"{self.name}.{metric}", protocol, kind, np.array(values), ones)

        nats = [-word.total for _, word in words]
        full = [float(word.greedy.all()) for _, word in words]
        if self.harness:
            return [
                result("perplexity", "last word", PERPLEXITY, nats),
                result("acc", "last word, greedy", ACCURACY, full),
            ]
        allowed = [float(first and word.greedy[1:].all()) for first, word in words]
        return [
            result("perplexity", "last word", PERPLEXITY, nats),
            result("accuracy", "last word, without stop words", ACCURACY, allowed),
            result("accuracy_any_word", "last word, greedy", ACCURACY, full),
            result(
                "perplexity_last_token", "last token", PERPLEXITY, [-float(w.logprobs[-1]) for _, w in words]
            ),
            result("accuracy_last_token", "last token", ACCURACY, [float(w.greedy[-1]) for _, w in words]),
        ]
