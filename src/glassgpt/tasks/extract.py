"""Extractive summaries: the sentences of a text that tell a language model most about the rest of it.

A sentence's relevance is the pointwise mutual information between it and other sentences of the text: how
many nats more probable they are after it than on their own (Padmakumar and He, 2021, "Unsupervised extractive
summarization using pointwise mutual information"). Instead of all pairs, which costs as much as reading the
text once per sentence, every sentence is tried with the beginnings of a few others, spread over the text: 192
tokens each. Two priors count half as much each: a sentence near the start, and one that the model finds
ordinary (log-probability per token), which keeps lists, tables and debris out.

Only the order of the sentences comes from the model, so nothing is invented.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.config import check_can_continue
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_whole
from glassgpt.tasks.sentences import split_sentences, unwrap

if TYPE_CHECKING:
    from glassgpt.generate.language_model import LanguageModel

SENTENCES = 3
MAX_SENTENCES = 1000  # of a summary
PROBES = 12  # sentences that each candidate is tried with
PROBE_TOKENS = 16  # of each of them, from its beginning
CANDIDATE_TOKENS = 64  # that are read of a candidate
MAX_CANDIDATES = 256  # of a longer text that many sentences are compared, spread over it: 60,000 tokens
MIN_TOKENS = 8  # shorter sentences (headings, greetings) are taken only where there are no others
MAX_FRAGMENTS = 64  # then this many are compared: which of them are chosen matters less than the time
MIN_LETTERS = 0.85  # of the characters, with spaces; code and links have fewer
POSITION_WEIGHT = 0.5  # both chosen on 14 articles of the validation set of recipes/summarisation
FLUENCY_WEIGHT = 0.5
_PROSE = re.compile(r"""^(?!\||!\[).*[.!?…]["'”’»)\]*_]*$""")  # no row of a table, no picture, no heading
SAME = 0.6  # two sentences with this share of their words in common say the same


@dataclass(frozen=True)
class Quote:
    """A sentence of the text."""

    index: int  # its number among the sentences of the text, from 0
    text: str
    score: float | None = None  # in standard deviations; None where nothing had to be chosen


@dataclass(frozen=True)
class Extract:
    """Sentences of a text, in its order."""

    quotes: list[Quote]
    source_sentences: int
    compared_sentences: int  # without headings and tables, and at most MAX_CANDIDATES or MAX_FRAGMENTS
    source_tokens: int
    sampled: bool = False  # more were worth comparing

    mode = "extract"

    @property
    def text(self) -> str:
        return " ".join(quote.text for quote in self.quotes)

    @property
    def notes(self) -> list[str]:
        """How the sentences were chosen."""
        if len(self.quotes) == self.source_sentences:
            return [f"the text has {_count(self.source_sentences, 'sentence')}: it is returned unchanged"]
        note = f"extract: {len(self.quotes)} of the text's {_count(self.source_sentences, 'sentence')}"
        if self.sampled:
            note += f"; {self.compared_sentences:,}, spread over the text, were compared"
        return [note]


def extract(
    gpt: LanguageModel, text: str, sentences: int = SENTENCES, progress: Progress = no_progress
) -> Extract:
    """The `sentences` of a text that the model's scores rank highest, in the order of the text."""
    check_whole("sentences", sentences, 1, MAX_SENTENCES)
    check_can_continue(gpt.config)
    parts = split_sentences(unwrap(text))
    source_tokens = len(gpt.encode(text))
    if len(parts) <= sentences:
        quotes = [Quote(i, part) for i, part in enumerate(parts)]
        return Extract(quotes, len(parts), len(parts), source_tokens)
    ids = [gpt.encode(f" {part}")[:CANDIDATE_TOKENS] for part in parts]
    comparable, most = choose_candidates(parts, ids, sentences)
    candidates = spread(comparable, most)
    if len(candidates) == 1:
        return Extract([Quote(candidates[0], parts[candidates[0]])], len(parts), 1, source_tokens)
    scores = rank(gpt, [ids[i] for i in candidates], candidates, progress)
    chosen = choose([parts[i] for i in candidates], scores, sentences)
    quotes = [Quote(candidates[i], parts[candidates[i]], float(scores[i])) for i in sorted(chosen)]
    return Extract(
        quotes, len(parts), len(candidates), source_tokens, sampled=len(candidates) < len(comparable)
    )


def choose_candidates(
    parts: Sequence[str], ids: Sequence[list[int]], sentences: int
) -> tuple[Sequence[int], int]:
    """The numbers of those that look like sentences, if there are enough, and how many of them to compare."""
    prose = [i for i, part in enumerate(parts) if len(ids[i]) >= MIN_TOKENS and is_prose(part)]
    if len(prose) >= sentences:
        return prose, max(MAX_CANDIDATES, sentences)
    return range(len(parts)), max(MAX_FRAGMENTS, sentences)


def is_prose(sentence: str) -> bool:
    letters = sum(char.isalpha() or char.isspace() for char in sentence)
    return letters >= MIN_LETTERS * len(sentence) and bool(_PROSE.search(sentence))


def spread(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers, evenly spaced, with the first and the last."""
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[i] for i in np.linspace(0, len(numbers) - 1, most).round().astype(int)]


def rank(
    gpt: LanguageModel, ids: Sequence[list[int]], positions: Sequence[int], progress: Progress
) -> np.ndarray:
    """A score for each candidate, given as token ids and its place in the text: (N,)."""
    relevance, fluency = relevance_and_fluency(gpt, ids, progress)
    earliness = -np.log1p(np.array(positions))
    priors = POSITION_WEIGHT * standardize(earliness) + FLUENCY_WEIGHT * standardize(fluency)
    return np.asarray(standardize(relevance) + priors)


def standardize(values: np.ndarray) -> np.ndarray:
    spread = values.std()
    return np.asarray((values - values.mean()) / (spread if spread > 0 else 1.0))


def relevance_and_fluency(
    gpt: LanguageModel, ids: Sequence[list[int]], progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """What each candidate adds to the log-probability of the probes' beginnings, on average, and its own
    log-probability per token."""
    eot = None if gpt.tokenizer is None else gpt.tokenizer.eot_id
    start = [ids[0][0] if eot is None else eot]  # the first scored token needs a token before it
    probe_tokens = min(PROBE_TOKENS, gpt.backend.context // 2)
    room = gpt.backend.context - len(start) - probe_tokens
    ids = [candidate[:room] for candidate in ids]
    probes = spread(range(len(ids)), PROBES)
    ends = [ids[j][:probe_tokens] for j in probes]
    groups = [[request(start, candidate)] for candidate in ids]
    groups += [[request([*start, *candidate], end) for end in ends] for candidate in ids]
    logprobs: dict[tuple[int, int], np.ndarray] = {}
    total = sum(window.n_scored for group in groups for window in group)
    scored = closing(gpt.backend.score(groups))
    with progress("comparing sentences", total) as advance, gpt.lock.hold(), scored as batches:
        for places, scores in batches:
            for place, score in zip(places, scores, strict=True):
                logprobs[place] = score.logprobs
                advance(len(score.logprobs))
    count = len(ids)
    alone = np.array([logprobs[probe, 0][:probe_tokens].sum() for probe in probes])
    gains = (
        np.array([[logprobs[count + i, j].sum() for j in range(len(probes))] for i in range(count)]) - alone
    )
    for j, probe in enumerate(probes):
        gains[probe, j] = np.nan  # what a sentence says about itself does not count
    return np.nanmean(gains, axis=1), np.array([logprobs[i, 0].mean() for i in range(count)])


def request(before: Sequence[int], scored: Sequence[int]) -> ScoreRequest:
    return ScoreRequest(np.array([*before, *scored], np.int64), len(before))


def choose(sentences: Sequence[str], scores: np.ndarray, count: int) -> list[int]:
    """The numbers of the best sentences, leaving out those that repeat a better one while there are
    others."""
    order = [int(i) for i in np.argsort(-scores, kind="stable")]
    words = [set(re.findall(r"\w+", sentence.casefold())) for sentence in sentences]
    chosen: list[int] = []
    for i in order:
        if len(chosen) < count and not any(overlap(words[i], words[j]) >= SAME for j in chosen):
            chosen.append(i)
    return chosen


def overlap(a: set[str], b: set[str]) -> float:
    return len(a & b) / max(1, min(len(a), len(b)))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
