"""Perplexity and bits per byte of long texts.

Values for the same text differ by the windows, by the detokenization, and by what the loss is divided by:
tokens of the model, words and newlines of the corpus, or bytes. Each protocol is a class here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.protocol import ScoreRequest, TokenScores
from glassgpt.evaluate.metrics import BITS, PERPLEXITY, MetricKind, MetricResult
from glassgpt.evaluate.scoring.windows import rolling_windows, strided_windows
from glassgpt.evaluate.suites.datasets import Dataset
from glassgpt.evaluate.suites.detokenize import harness_wikitext
from glassgpt.evaluate.suites.eval_task import NotScorable, PreparedTask, WindowBuilder, document_note
from glassgpt.evaluate.suites.lambada import read_passages

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer


def count_words_and_newlines(text: str) -> int:
    """The token count of a corpus with one sentence or paragraph per line, as its language models count."""
    return len(text.split()) + text.count("\n")


def check_stride(builder: WindowBuilder) -> int:
    stride = builder.n_positions if builder.stride is None else builder.stride
    if not 1 <= stride <= builder.n_positions:
        raise NotScorable(
            f"stride {stride} is not from 1 to {builder.n_positions}, the context of this model"
        )
    return stride


def count_scored_bytes(tokenizer: Tokenizer, windows: Sequence[ScoreRequest]) -> list[int]:
    """The number of bytes in the scored tokens of each window."""
    return [len(tokenizer.decode_bytes(window.ids[window.first :].tolist())) for window in windows]


def align_to_original(text: str, undone: str, sizes: Sequence[int]) -> list[str]:
    """The original text of each part of the detokenized text; `sizes` are the parts' bytes.

    Detokenizing only removes characters, so every remaining one is the next equal one in the original. A word
    split between two parts belongs to the first.
    """
    data = undone.encode("utf-8")
    ends, at, read, done = [0], 0, 0, 0
    for size in sizes:
        read += size
        for kept in data[done:read].decode("utf-8", "ignore"):  # half a character waits for the next part
            at = text.index(kept, at) + 1
            done += len(kept.encode("utf-8"))
        end = at
        while 0 < end < len(text) and not text[end - 1].isspace() and not text[end].isspace():
            end += 1
        ends.append(end)
    return [text[a:b] for a, b in pairwise(ends)]


@dataclass(frozen=True)
class WholeText:
    """The paper's protocol: one long text, detokenized; its loss per word and newline of the original.

    Windows do not overlap unless a stride is given.
    """

    name: str
    dataset: Dataset
    detokenize: Callable[[str], str]

    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask:
        undone = self.detokenize(text)
        windows, stride = text_windows(self.name, undone, builder)
        unscored = windows[0].ids[: windows[0].first].tolist() if builder.tokenizer.eot_id is None else []
        sizes = [
            len(builder.tokenizer.decode_bytes(unscored)),
            *count_scored_bytes(builder.tokenizer, windows),
        ]
        _, *originals = align_to_original(text, undone, sizes)
        windows_as = "disjoint windows" if stride == builder.n_positions else f"stride {stride}"
        protocol = f"paper: detokenized, per original token, {windows_as}"
        weights = [count_words_and_newlines(original) for original in originals]
        return prepare_text(f"{self.name}.perplexity", protocol, PERPLEXITY, windows, weights)


@dataclass(frozen=True)
class TokenPerplexity:
    """The protocol of the `transformers` documentation: raw text, per token of the model, any stride."""

    name: str
    dataset: Dataset
    read: Callable[[str], str] = str

    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask:
        ids = builder.tokenizer.encode(self.read(text))
        stride = check_stride(builder)
        windows = list(strided_windows(ids, builder.n_positions, stride))[: builder.limit]
        if not windows:
            raise NotScorable(f"{self.name}: the text has fewer than two tokens")
        metric, protocol = f"{self.name}.token_perplexity", f"per token of the model, stride {stride}"
        return prepare_text(metric, protocol, PERPLEXITY, windows, [window.n_scored for window in windows])


@dataclass(frozen=True)
class BitsPerByte:
    """Bits per byte of raw text."""

    name: str
    dataset: Dataset
    protocol: str = "raw text"

    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask:
        windows, stride = text_windows(self.name, text, builder)
        protocol = f"{self.protocol}, stride {stride}"
        weights = count_scored_bytes(builder.tokenizer, windows)
        return prepare_text(f"{self.name}.bits_per_byte", protocol, BITS, windows, weights)


def text_windows(name: str, text: str, builder: WindowBuilder) -> tuple[list[ScoreRequest], int]:
    """The windows of a text, and their stride."""
    stride = check_stride(builder)
    ids = builder.tokenizer.encode(text)
    windows = list(rolling_windows(ids, builder.n_positions, stride, builder.tokenizer.eot_id))[
        : builder.limit
    ]
    if not windows:
        raise NotScorable(f"{name}: the text is empty")
    return windows, stride


def prepare_text(
    metric: str, protocol: str, kind: MetricKind, windows: Sequence[ScoreRequest], weights: Sequence[int]
) -> PreparedTask:
    """Every window is a unit, weighted by what the loss is divided by: its scored tokens, words or bytes."""

    def compute_metrics(scores: Sequence[Sequence[TokenScores]]) -> list[MetricResult]:
        totals = np.array([-score.total for (score,) in scores])
        return [MetricResult(metric, protocol, kind, totals, np.array(weights, np.float64))]

    return PreparedTask([[window] for window in windows], compute_metrics, is_text=True)


@dataclass(frozen=True)
class DocumentBits:
    """A .jsonl of documents, each scored on its own: bits per byte, and perplexity per token."""

    name: str
    dataset: Dataset

    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask:
        stride = check_stride(builder)
        groups, sizes, empty = [], [], []
        for number, document in enumerate(read_passages(text), start=1):
            if builder.limit is not None and number > builder.limit:
                break
            ids = builder.tokenizer.encode(document)
            windows = list(rolling_windows(ids, builder.n_positions, stride, builder.tokenizer.eot_id))
            if not windows:
                empty.append(number)
                continue
            groups.append(windows)
            sizes.append(
                (
                    sum(count_scored_bytes(builder.tokenizer, windows)),
                    sum(window.n_scored for window in windows),
                )
            )
        if not groups:
            raise NotScorable(f"{self.name}: the file contains no text")

        def compute_metrics(scores: Sequence[Sequence[TokenScores]]) -> list[MetricResult]:
            nats = np.array([-sum(part.total for part in parts) for parts in scores])
            size, tokens = np.array(sizes, np.float64).T
            protocol = f"per document, stride {stride}"
            return [
                MetricResult(f"{self.name}.bits_per_byte", protocol, BITS, nats, size),
                MetricResult(f"{self.name}.token_perplexity", protocol, PERPLEXITY, nats, tokens),
            ]

        return PreparedTask(groups, compute_metrics, document_note(empty, "skipped: empty"), is_text=True)


def split_articles(text: str) -> list[str]:
    """WikiText's articles: each starts at a line like ` = Title = ` (not ` = = Section = = `)."""
    articles: list[list[str]] = [[]]
    for line in text.split("\n"):
        heading = line.replace("= = =", "===").replace("= =", "==").strip()
        if heading.startswith("= ") and heading.endswith(" ="):
            articles.append([])
        articles[-1].append(line)
    pages = ["\n".join(lines) for lines in articles]
    return [page for page in pages if page.strip()]


@dataclass(frozen=True)
class HarnessWikitext:
    """The task `wikitext` of lm-evaluation-harness: per article, disjoint windows, three metrics."""

    name: str
    dataset: Dataset

    def prepare(self, text: str, builder: WindowBuilder) -> PreparedTask:
        groups, counts, empty = [], [], []
        for number, page in enumerate(split_articles(text)[: builder.limit], start=1):
            ids = builder.tokenizer.encode(harness_wikitext(page))
            windows = list(
                rolling_windows(ids, builder.n_positions, builder.n_positions, builder.tokenizer.eot_id)
            )
            if not windows:
                empty.append(number)
                continue
            groups.append(windows)
            # Counted on the published page; the split includes the empty strings at both ends.
            counts.append((len(re.split(r"\s+", page)), len(page.encode("utf-8"))))
        if not groups:
            raise NotScorable(f"{self.name}: the file contains no article")

        def compute_metrics(scores: Sequence[Sequence[TokenScores]]) -> list[MetricResult]:
            nats = np.array([-sum(part.total for part in parts) for parts in scores])
            words, size = np.array(counts, np.float64).T
            protocol = "per article, disjoint windows"
            return [
                MetricResult(f"{self.name}.word_perplexity", protocol, PERPLEXITY, nats, words),
                MetricResult(f"{self.name}.byte_perplexity", protocol, PERPLEXITY, nats, size),
                MetricResult(f"{self.name}.bits_per_byte", protocol, BITS, nats, size),
            ]

        notes = document_note(empty, "skipped: empty")
        if builder.stride is not None:
            notes.append("--stride is ignored: this task uses disjoint windows")
        return PreparedTask(groups, compute_metrics, notes, is_text=True)


# The tasks that take a stride.
STRIDED = (WholeText, TokenPerplexity, BitsPerByte, DocumentBits)


def join_as_hub_rows(text: str) -> str:
    """WikiText as tutorials join it: the hub's rows (one per line, blank ones empty), blank lines between.

    `"\\n\\n".join(rows)`: 287,644 tokens of GPT-2 for WikiText-2's raw test file.
    """
    windows = [line + "\n" if line.strip() else "" for line in text.removesuffix("\n").split("\n")]
    return "\n\n".join(windows)
