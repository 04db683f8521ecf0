"""LAMBADA: the last word of a passage, which is easy to guess from all of it and hard from its last sentence.

Published figures differ because there are several answers to two questions: what is to be guessed (the last
word, or only its last token), and which words may be said (any, or only such as can end a sentence). One pass
over the data answers all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.errors import FileFormatError
from glassgpt.evaluate.datasets import Dataset
from glassgpt.evaluate.metrics import ACCURACY, PERPLEXITY, Kind, Measure
from glassgpt.evaluate.score_cache import Scores
from glassgpt.evaluate.task import NotScorable, Prepared, Reader, left_out, lines_of
from glassgpt.generate.text import Tokenizer

# Words that tie a sentence together and hardly ever end one. The paper says that a "stop-word filter" took
# the largest model from 52.66% to 63.24% and does not print its list; this one is ours.
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
    """The tokens that spell a whole stop word, in any case, with or without a blank before it."""
    found = []
    for token in range(tokenizer.text_size):
        if token != tokenizer.eot_id and tokenizer.decode([token]).strip().lower() in STOP_WORDS:
            found.append(token)
    return found


def read_passages(text: str) -> Iterable[str]:
    for number, line in enumerate(lines_of(text), start=1):
        try:
            passage = json.loads(line)["text"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise FileFormatError(f'line {number} is not like {{"text": "..."}}') from None
        if not isinstance(passage, str):
            raise FileFormatError(f"line {number}: its text is {type(passage).__name__}, not a string")
        yield passage


@dataclass(frozen=True)
class Lambada:
    name: str
    dataset: Dataset
    harness: bool = False  # the two figures of lm-evaluation-harness's lambada_openai, under its names

    def prepare(self, text: str, reader: Reader) -> Prepared:
        groups, empty, cut = [], [], []
        for number, passage in enumerate(read_passages(text), start=1):
            if reader.limit is not None and number > reader.limit:
                break
            context, blank, word = passage.rpartition(" ")  # a newline is no blank, as in the harness
            try:
                if not passage.strip():
                    raise NotScorable("it is empty")
                group, is_cut = reader.continuation(context, blank + word, barred=True)
            except NotScorable:
                empty.append(number)
                continue
            if is_cut:
                cut.append(number)
            groups.append(group)
        if not groups:
            raise NotScorable(f"{self.name}: there is no passage with a last word to guess")
        notes = left_out(empty, "left out, without a last word to guess")
        notes += left_out(cut, f"cut at the beginning to the context of {reader.n_positions} tokens")
        return Prepared(groups, self.figures, notes)

    def figures(self, scores: Sequence[Sequence[Scores]]) -> list[Measure]:
        words = [(one[0].unbarred[0], Scores(*map(np.concatenate, zip(*one, strict=True)))) for one in scores]
        ones = np.ones(len(words))

        def measure(metric: str, protocol: str, kind: Kind, values: list[float]) -> Measure:
            return Measure(f"{self.name}.{metric}", protocol, kind, np.array(values), ones)

        nats = [-word.total for _, word in words]
        whole = [float(word.greedy.all()) for _, word in words]
        if self.harness:
            return [
                measure("perplexity", "last word", PERPLEXITY, nats),
                measure("acc", "last word, greedy", ACCURACY, whole),
            ]
        allowed = [float(first and word.greedy[1:].all()) for first, word in words]
        return [
            measure("perplexity", "last word", PERPLEXITY, nats),
            measure("accuracy", "last word, stop words barred", ACCURACY, allowed),
            measure("accuracy_any_word", "last word, greedy", ACCURACY, whole),
            measure(
                "perplexity_last_token", "last token", PERPLEXITY, [-float(w.logprobs[-1]) for _, w in words]
            ),
            measure("accuracy_last_token", "last token", ACCURACY, [float(w.greedy[-1]) for _, w in words]),
        ]
