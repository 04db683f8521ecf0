"""Long texts: how surprising each token is, given what stands before it in a window of the context's length.

Figures for the same text differ by what the windows are, by what was done to the text, and by what the loss
is divided by: tokens of the model, words and line ends of the corpus, or bytes. Each rule is a class here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.evaluate.datasets import Dataset
from glassgpt.evaluate.detokenise import harness_wikitext
from glassgpt.evaluate.lambada import read_passages
from glassgpt.evaluate.measure import BITS, PERPLEXITY, Kind, Measure
from glassgpt.evaluate.rows import Row, rolling_rows, strided_rows
from glassgpt.evaluate.store import Scores
from glassgpt.evaluate.task import NotScorable, Prepared, Reader, left_out


def words_and_line_ends(text: str) -> int:
    """The tokens of a corpus of one sentence or paragraph a line, as language models on it count them."""
    return len(text.split()) + text.count("\n")


def n_bytes(text: str) -> int:
    return len(text.encode("utf-8"))


def check_stride(stride: int, n_positions: int) -> int:
    if not 1 <= stride <= n_positions:
        raise NotScorable(f"stride {stride} is not from 1 to {n_positions}, the context of this model")
    return stride


@dataclass(frozen=True)
class WholeText:
    """The paper's rule: one long text, detokenised; the loss of all of it over what the original counts.

    Windows do not overlap unless a stride is asked for. Of the first windows alone (`limit`) the original's
    count is taken in proportion to the tokens.
    """

    name: str
    dataset: Dataset
    detokenise: Callable[[str], str]
    count: Callable[[str], int]
    metric: str = "perplexity"
    kind: Kind = PERPLEXITY
    unit: str = "original token"

    def prepare(self, text: str, reader: Reader) -> Prepared:
        ids = reader.tokenizer.encode(self.detokenise(text))
        stride = reader.n_positions if reader.stride is None else reader.stride
        check_stride(stride, reader.n_positions)
        rows = list(rolling_rows(ids, reader.n_positions, stride, reader.tokenizer.eot_id))
        if not rows:
            raise NotScorable(f"{self.name}: the text is empty")
        per_token = self.count(text) / sum(row.n_scored for row in rows)
        windows = "apart" if stride == reader.n_positions else f"stride {stride}"
        protocol = f"paper: detokenised, per {self.unit}, windows {windows}"
        return one_text(f"{self.name}.{self.metric}", protocol, self.kind, rows[: reader.limit], per_token)


@dataclass(frozen=True)
class TokenPerplexity:
    """The rule of the `transformers` documentation: text as it is, per token of the model, any stride."""

    name: str
    dataset: Dataset
    read: Callable[[str], str] = str

    def prepare(self, text: str, reader: Reader) -> Prepared:
        ids = reader.tokenizer.encode(self.read(text))
        stride = check_stride(
            reader.n_positions if reader.stride is None else reader.stride, reader.n_positions
        )
        rows = list(strided_rows(ids, reader.n_positions, stride))
        if not rows:
            raise NotScorable(f"{self.name}: the text has fewer than two tokens")
        metric, protocol = f"{self.name}.token_perplexity", f"per token of the model, stride {stride}"
        return one_text(metric, protocol, PERPLEXITY, rows[: reader.limit], 1.0)


def one_text(metric: str, protocol: str, kind: Kind, rows: list[Row], per_token: float) -> Prepared:
    """Every window is a unit; its weight is its share of what the loss is divided by."""
    weights = np.array([row.n_scored * per_token for row in rows])

    def figures(scores: Sequence[Sequence[Scores]]) -> list[Measure]:
        totals = np.array([-one.total for (one,) in scores])
        return [Measure(metric, protocol, kind, totals, weights)]

    return Prepared([[row] for row in rows], figures, is_text=True)


@dataclass(frozen=True)
class BitsPerByte:
    """A text as it is, every byte of it: bits per byte, and per-word perplexity beside it."""

    name: str
    dataset: Dataset

    def prepare(self, text: str, reader: Reader) -> Prepared:
        stride = check_stride(
            reader.n_positions if reader.stride is None else reader.stride, reader.n_positions
        )
        ids = reader.tokenizer.encode(text)
        rows = list(rolling_rows(ids, reader.n_positions, stride, reader.tokenizer.eot_id))
        if not rows:
            raise NotScorable(f"{self.name}: the text is empty")
        protocol = f"text as it is, stride {stride}"
        per_token = n_bytes(text) / sum(row.n_scored for row in rows)
        return one_text(f"{self.name}.bits_per_byte", protocol, BITS, rows[: reader.limit], per_token)


@dataclass(frozen=True)
class DocumentBits:
    """A .jsonl of documents, each read from its beginning: bits per byte, and perplexity per token."""

    name: str
    dataset: Dataset

    def prepare(self, text: str, reader: Reader) -> Prepared:
        context = reader.n_positions
        stride = check_stride(context if reader.stride is None else reader.stride, context)
        groups, sizes, empty = [], [], []
        for number, document in enumerate(read_passages(text), start=1):
            if reader.limit is not None and number > reader.limit:
                break
            ids = reader.tokenizer.encode(document)
            rows = list(rolling_rows(ids, context, stride, reader.tokenizer.eot_id))
            if not rows:
                empty.append(number)
                continue
            groups.append(rows)
            sizes.append((n_bytes(document), sum(row.n_scored for row in rows)))
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
            counts.append((len(re.split(r"\s+", page)), n_bytes(page)))
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

        return Prepared(groups, figures, left_out(empty, "left out, without text"), is_text=True)


def lines_as_hub_rows(text: str) -> str:
    """WikiText as tutorials join it: the hub's rows (one a line, blank ones empty), blank lines between.

    `"\\n\\n".join(rows)`: 287,644 tokens of GPT-2 for WikiText-2's raw test file.
    """
    rows = [line + "\n" if line.strip() else "" for line in text.removesuffix("\n").split("\n")]
    return "\n\n".join(rows)
