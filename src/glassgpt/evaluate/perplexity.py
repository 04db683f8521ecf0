"""Long texts: how surprising each token is, given what stands before it in a window of the context's length.

Figures for the same text differ by what the windows are, by what was done to the text, and by what the loss
is divided by: tokens of the model, words and line ends of the corpus, or bytes. Each rule is a class here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.evaluate.datasets import Dataset
from glassgpt.evaluate.detokenise import harness_wikitext
from glassgpt.evaluate.lambada import read_passages
from glassgpt.evaluate.metrics import BITS, PERPLEXITY, Kind, Measure
from glassgpt.evaluate.score_cache import Scores
from glassgpt.evaluate.task import NotScorable, Prepared, Reader, left_out
from glassgpt.evaluate.windows import Row, rolling_rows, strided_rows

if TYPE_CHECKING:
    from glassgpt.generate.text import Tokenizer


def words_and_line_ends(text: str) -> int:
    """The tokens of a corpus of one sentence or paragraph a line, as language models on it count them."""
    return len(text.split()) + text.count("\n")


def stride_of(reader: Reader) -> int:
    stride = reader.n_positions if reader.stride is None else reader.stride
    if not 1 <= stride <= reader.n_positions:
        raise NotScorable(f"stride {stride} is not from 1 to {reader.n_positions}, the context of this model")
    return stride


def scored_bytes(tokenizer: Tokenizer, rows: Sequence[Row]) -> list[int]:
    """How many bytes the scored tokens of each row stand for."""
    return [len(tokenizer.decode_bytes(row.ids[row.first :].tolist())) for row in rows]


def original_stretches(text: str, undone: str, sizes: Sequence[int]) -> list[str]:
    """The original of each stretch of the detokenised text, whose sizes are in bytes.

    Detokenising only leaves characters out, so each one kept is the next of its kind in the original. A word
    that a stretch breaks off belongs to it whole.
    """
    data = undone.encode("utf-8")
    ends, at, read, done = [0], 0, 0, 0
    for size in sizes:
        read += size
        for kept in data[done:read].decode("utf-8", "ignore"):  # half a character waits for the next stretch
            at = text.index(kept, at) + 1
            done += len(kept.encode("utf-8"))
        end = at
        while 0 < end < len(text) and not text[end - 1].isspace() and not text[end].isspace():
            end += 1
        ends.append(end)
    return [text[a:b] for a, b in pairwise(ends)]


@dataclass(frozen=True)
class WholeText:
    """The paper's rule: one long text, detokenised; its loss over the words and line ends of the original.

    Windows do not overlap unless a stride is asked for.
    """

    name: str
    dataset: Dataset
    detokenise: Callable[[str], str]

    def prepare(self, text: str, reader: Reader) -> Prepared:
        undone = self.detokenise(text)
        rows, stride = windows(self.name, undone, reader)
        given = rows[0].ids[: rows[0].first].tolist() if reader.tokenizer.eot_id is None else []
        sizes = [len(reader.tokenizer.decode_bytes(given)), *scored_bytes(reader.tokenizer, rows)]
        _, *stretches = original_stretches(text, undone, sizes)
        apart = "apart" if stride == reader.n_positions else f"stride {stride}"
        protocol = f"paper: detokenised, per original token, windows {apart}"
        weights = [words_and_line_ends(stretch) for stretch in stretches]
        return one_text(f"{self.name}.perplexity", protocol, PERPLEXITY, rows, weights)


@dataclass(frozen=True)
class TokenPerplexity:
    """The rule of the `transformers` documentation: text as it is, per token of the model, any stride."""

    name: str
    dataset: Dataset
    read: Callable[[str], str] = str

    def prepare(self, text: str, reader: Reader) -> Prepared:
        ids = reader.tokenizer.encode(self.read(text))
        stride = stride_of(reader)
        rows = list(strided_rows(ids, reader.n_positions, stride))[: reader.limit]
        if not rows:
            raise NotScorable(f"{self.name}: the text has fewer than two tokens")
        metric, protocol = f"{self.name}.token_perplexity", f"per token of the model, stride {stride}"
        return one_text(metric, protocol, PERPLEXITY, rows, [row.n_scored for row in rows])


@dataclass(frozen=True)
class BitsPerByte:
    """A text as it is, every byte of it."""

    name: str
    dataset: Dataset
    protocol: str = "text as it is"

    def prepare(self, text: str, reader: Reader) -> Prepared:
        rows, stride = windows(self.name, text, reader)
        protocol = f"{self.protocol}, stride {stride}"
        weights = scored_bytes(reader.tokenizer, rows)
        return one_text(f"{self.name}.bits_per_byte", protocol, BITS, rows, weights)


def windows(name: str, text: str, reader: Reader) -> tuple[list[Row], int]:
    """The windows over a whole text that are to be scored, and their stride."""
    stride = stride_of(reader)
    ids = reader.tokenizer.encode(text)
    rows = list(rolling_rows(ids, reader.n_positions, stride, reader.tokenizer.eot_id))[: reader.limit]
    if not rows:
        raise NotScorable(f"{name}: the text is empty")
    return rows, stride


def one_text(metric: str, protocol: str, kind: Kind, rows: Sequence[Row], weights: Sequence[int]) -> Prepared:
    """Every window is a unit; its weight is what its loss is divided by: tokens, words or bytes scored."""

    def figures(scores: Sequence[Sequence[Scores]]) -> list[Measure]:
        totals = np.array([-one.total for (one,) in scores])
        return [Measure(metric, protocol, kind, totals, np.array(weights, np.float64))]

    return Prepared([[row] for row in rows], figures, is_text=True)


@dataclass(frozen=True)
class DocumentBits:
    """A .jsonl of documents, each read from its beginning: bits per byte, and perplexity per token."""

    name: str
    dataset: Dataset

    def prepare(self, text: str, reader: Reader) -> Prepared:
        stride = stride_of(reader)
        groups, sizes, empty = [], [], []
        for number, document in enumerate(read_passages(text), start=1):
            if reader.limit is not None and number > reader.limit:
                break
            ids = reader.tokenizer.encode(document)
            rows = list(rolling_rows(ids, reader.n_positions, stride, reader.tokenizer.eot_id))
            if not rows:
                empty.append(number)
                continue
            groups.append(rows)
            sizes.append((sum(scored_bytes(reader.tokenizer, rows)), sum(row.n_scored for row in rows)))
        if not groups:
            raise NotScorable(f"{self.name}: there is no text in it")

        def figures(scores: Sequence[Sequence[Scores]]) -> list[Measure]:
            nats = np.array([-sum(one.total for one in found) for found in scores])
            size, tokens = np.array(sizes, np.float64).T
            protocol = f"document by document, stride {stride}"
            return [
                Measure(f"{self.name}.bits_per_byte", protocol, BITS, nats, size),
                Measure(f"{self.name}.token_perplexity", protocol, PERPLEXITY, nats, tokens),
            ]

        return Prepared(groups, figures, left_out(empty, "left out, without text"), is_text=True)


def pages(text: str) -> list[str]:
    """WikiText's articles: each begins at a line like ` = Title = ` (not ` = = Section = = `)."""
    found: list[list[str]] = [[]]
    for line in text.split("\n"):
        heading = line.replace("= = =", "===").replace("= =", "==").strip()
        if heading.startswith("= ") and heading.endswith(" ="):
            found.append([])
        found[-1].append(line)
    joined = ["\n".join(lines) for lines in found]
    return [page for page in joined if page.strip()]


@dataclass(frozen=True)
class HarnessWikitext:
    """The task `wikitext` of lm-evaluation-harness: article by article, windows apart, three figures."""

    name: str
    dataset: Dataset

    def prepare(self, text: str, reader: Reader) -> Prepared:
        groups, counts, empty = [], [], []
        for number, page in enumerate(pages(text)[: reader.limit], start=1):
            ids = reader.tokenizer.encode(harness_wikitext(page))
            rows = list(rolling_rows(ids, reader.n_positions, reader.n_positions, reader.tokenizer.eot_id))
            if not rows:
                empty.append(number)
                continue
            groups.append(rows)
            # Counted on the page as published; splitting keeps the empty strings at both ends.
            counts.append((len(re.split(r"\s+", page)), len(page.encode("utf-8"))))
        if not groups:
            raise NotScorable(f"{self.name}: there is no article in it")

        def figures(scores: Sequence[Sequence[Scores]]) -> list[Measure]:
            nats = np.array([-sum(one.total for one in found) for found in scores])
            words, size = np.array(counts, np.float64).T
            protocol = "article by article, windows apart"
            return [
                Measure(f"{self.name}.word_perplexity", protocol, PERPLEXITY, nats, words),
                Measure(f"{self.name}.byte_perplexity", protocol, PERPLEXITY, nats, size),
                Measure(f"{self.name}.bits_per_byte", protocol, BITS, nats, size),
            ]

        notes = left_out(empty, "left out, without text")
        if reader.stride is not None:
            notes.append("--stride does not hold here: windows apart are this task's rule")
        return Prepared(groups, figures, notes, is_text=True)


# Tasks whose windows may overlap.
STRIDED = (WholeText, TokenPerplexity, BitsPerByte, DocumentBits)


def lines_as_hub_rows(text: str) -> str:
    """WikiText as tutorials join it: the hub's rows (one a line, blank ones empty), blank lines between.

    `"\\n\\n".join(rows)`: 287,644 tokens of GPT-2 for WikiText-2's raw test file.
    """
    rows = [line + "\n" if line.strip() else "" for line in text.removesuffix("\n").split("\n")]
    return "\n\n".join(rows)
