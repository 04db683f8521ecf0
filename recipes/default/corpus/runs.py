"""Runs of words as numbers: what a text shares with another one. No dependence on Python's hash seed."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
_CODE = np.zeros(256, np.uint64)  # letters and digits, whatever their case; everything else separates words
for _number, _letter in enumerate("0123456789abcdefghijklmnopqrstuvwxyz", 1):
    _CODE[ord(_letter)] = _CODE[ord(_letter.upper())] = _number
_IS_LETTER = _CODE > 0
_FACTOR = np.uint64(6364136223846793005)
with np.errstate(over="ignore"):
    _CODE = _CODE * np.uint64(0x9E3779B97F4A7C15)
    _POWERS = np.cumprod(np.full(64, np.uint64(0xD1342543DE82EF95)), dtype=np.uint64)
LEAK_RUN, SHINGLE = 13, 8
COMMON = (
    "the of and to in a is that it was he for on with as his be at by not this had from but or have an they"
)


def word_hashes(text: str) -> Hashes:
    """A number for every word of a text."""
    letters = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    where = np.flatnonzero(_IS_LETTER[letters])
    if not len(where):
        return np.zeros(0, np.uint64)
    firsts = np.flatnonzero(np.diff(where, prepend=-2) > 1)  # positions in `where` at which a word begins
    lengths = np.diff(firsts, append=len(where))
    position = np.arange(len(where)) - np.repeat(firsts, lengths)
    with np.errstate(over="ignore"):
        values = _CODE[letters[where]] * _POWERS[np.minimum(position, 63)]
        words: Hashes = np.add.reduceat(values, firsts)
        return words ^ (words >> np.uint64(31))


def runs_of(words: Hashes, length: int) -> Hashes:
    """A number for every run of `length` words."""
    count = len(words) - length + 1
    if count < 1:
        return np.zeros(0, np.uint64)
    with np.errstate(over="ignore"):
        runs = words[:count].copy()
        for offset in range(1, length):
            runs *= _FACTOR
            runs += words[offset : offset + count]
        runs ^= runs >> np.uint64(29)
        runs *= np.uint64(0xBF58476D1CE4E5B9)
        runs ^= runs >> np.uint64(32)
    return runs


COMMON_HASHES = np.sort(np.concatenate([word_hashes(word) for word in COMMON.split()]))


def is_english(words: Hashes) -> bool:
    """A fifth of an English text's words are the commonest ones."""
    sample = words[:6000]
    return len(sample) > 40 and bool(np.isin(sample, COMMON_HASHES).mean() > 0.2)


class SeenRuns:
    """Which runs of eight words have been seen: one of eight is looked at, in a table of 2**32 bits.

    With 75 million runs in the table 1.7 % of the new ones look seen; a duplicate has over 30 %.
    """

    def __init__(self, bits: int = 32) -> None:
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(1 << (bits - 3), np.uint8)

    @staticmethod
    def sample(words: Hashes) -> Hashes:
        runs = runs_of(words, SHINGLE)
        sampled: Hashes = runs[runs & np.uint64(7) == 0]
        return sampled

    def _place(self, runs: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        place = (runs >> self._shift).astype(np.int64)
        return place >> 3, np.uint8(1) << (place & 7).astype(np.uint8)

    def share(self, runs: Hashes) -> float:
        """Of the given runs, the part that has been seen."""
        if not len(runs):
            return 0.0
        byte, bit = self._place(runs)
        return float((self._table[byte] & bit > 0).mean())

    def add(self, runs: Hashes) -> None:
        byte, bit = self._place(runs)
        np.bitwise_or.at(self._table, byte, bit)


# A document that shares this many runs of 13 words with an evaluation text is dropped. Of one that shares
# fewer, the paragraphs in question are cut out.
DROPPED_AT = {
    "wikitext-test": 8, "wikitext-valid": 8, "lambada": 20, "cbt-test": 60, "hellaswag": 8, "piqa": 8,
    "arc-easy": 8, "copa": 4, "winograd": 4, "winogrande": 4,
}  # fmt: skip


class EvaluationTexts:
    """The runs of 13 words of every evaluation text."""

    def __init__(self, texts: dict[str, list[str]]) -> None:
        self.runs = {
            name: np.unique(np.concatenate([runs_of(word_hashes(text), LEAK_RUN) for text in items]))
            for name, items in texts.items()
        }
        every = np.concatenate([*self.runs.values(), np.zeros(0, np.uint64)])
        self._maybe = np.zeros(1 << 24, bool)  # by the low 24 bits: most runs of most texts stop here
        self._maybe[self._low(every)] = True

    @staticmethod
    def _low(runs: Hashes) -> npt.NDArray[np.int64]:
        return (runs & np.uint64((1 << 24) - 1)).astype(np.int64)

    def shared(self, words: Hashes) -> dict[str, int]:
        """How many runs of a text are in each evaluation text; those with none are left out."""
        runs = runs_of(words, LEAK_RUN)
        runs = runs[self._maybe[self._low(runs)]]
        counts = {}
        if len(runs):
            for name, known in self.runs.items():
                if len(known):
                    place = np.minimum(np.searchsorted(known, runs), len(known) - 1)
                    count = int((known[place] == runs).sum())
                    if count:
                        counts[name] = count
        return counts

    def without(self, text: str) -> str:
        """The text without the paragraphs that share a run."""
        kept = [line for line in text.split("\n") if len(line) < 40 or not self.shared(word_hashes(line))]
        return "\n".join(kept)


def leaked_from(counts: dict[str, int]) -> list[str]:
    return [name for name, count in counts.items() if count >= DROPPED_AT[name]]


def _lines(file: Path) -> Iterator[dict[str, object]]:
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _choices(file: Path) -> list[str]:
    """Question and answer as one text, whichever of the published forms the file has."""
    texts = []
    for item in _lines(file):
        for choice in item.get("choices") or item.get("endings") or []:  # type: ignore[attr-defined]
            texts.append(f"{str(item['query']).removeprefix('Question: ')} {choice}")
        for context in item.get("context_options") or []:  # type: ignore[attr-defined]
            texts.append(f"{context} {item['continuation']}")
    return texts


def _whole(file: Path) -> list[str]:
    with lzma.open(file, "rt", encoding="utf-8", errors="replace") as text:
        return [text.read().replace("-LRB-", "").replace("-RRB-", "").replace("<unk>", "")]


def evaluation_texts(folder: Path, cbt: Path | None) -> EvaluationTexts:
    """Every evaluation text that the folder has, and the test books of the Children's Book Test."""
    whole = {
        "wikitext-test": ("wikitext-2-raw.test.xz", "wikitext-103.test.tokens.xz"),
        "wikitext-valid": ("wikitext-103.valid.tokens.xz",),
    }
    choices = {
        "hellaswag": "hellaswag_val", "piqa": "piqa", "arc-easy": "arc_easy", "copa": "copa",
        "winograd": "winograd_wsc", "winogrande": "winogrande",
    }  # fmt: skip
    texts: dict[str, list[str]] = {}
    for name, files in whole.items():
        texts[name] = [text for file in files if (folder / file).is_file() for text in _whole(folder / file)]
    if (folder / "lambada_test.jsonl.xz").is_file():
        texts["lambada"] = [str(item["text"]) for item in _lines(folder / "lambada_test.jsonl.xz")]
    if cbt is not None:
        texts["cbt-test"] = _whole(cbt)
    for name, stem in choices.items():
        if (folder / f"{stem}.jsonl.xz").is_file():
            texts[name] = _choices(folder / f"{stem}.jsonl.xz")
    return EvaluationTexts({name: items for name, items in texts.items() if items})
