"""Surprisal, entropy and rank of the tokens of a text, and of its words, sentences or any other spans.

A word's surprisal is not the sum of its tokens'. In GPT-2's vocabulary white space belongs to the token after
it, so the tokens of "dog" do not say that the word ends there: "dogma" begins with the same ones. Following
Pimentel and Meister (2024) and Oh and Schuler (2024), a word between white space has the probability

    p(word | before) = p(tokens | before) * p(a word begins | before + tokens) / p(a word begins | before)

where "a word begins" sums over all tokens that begin with white space, and the end of the text. These
probabilities sum to one over all words.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.inspect.surprisal.distributions import Distributions, compute_distributions, starts_word
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.generate.language_model import LanguageModel

WORD = re.compile(r"[^ \t\n\r\v\f]+")
Span = tuple[int, int]  # characters of the text, from and to


@dataclass(frozen=True)
class ScoredSpan:
    """A token, a word or a sentence. `bits` is NaN where nothing stands before it to predict it from."""

    text: str
    start: int  # its first character in the text
    end: int
    bits: float  # its surprisal; of words and longer spans with the correction for white space
    token_bits: float  # the sum of its tokens' surprisals
    entropy: float  # bits, of the distribution over its first token
    rank: int  # of its first token; 1 is the most likely one, 0 if nothing predicted it
    tokens: int


class SurprisalText:
    """One text, scored."""

    def __init__(self, text: str, ids: Sequence[int], pieces: Sequence[bytes], found: Distributions) -> None:
        self.text = text
        self.ids = list(ids)
        self._found = found
        self._bytes = [0, *itertools.accumulate(map(len, pieces))]  # where each token begins
        starts = [0]  # where each character does
        for character in text:
            starts.append(starts[-1] + len(character.encode("utf-8")))
        self._characters = starts

    def __repr__(self) -> str:
        start = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        return f"SurprisalText({start!r}, {len(self.ids)} tokens, {self.bits:.1f} bits)"

    @property
    def bits(self) -> float:
        """The surprisal of the whole text: of all tokens that something predicts."""
        return float(-np.nansum(self._found.target) / math.log(2))

    @cached_property
    def tokens(self) -> list[ScoredSpan]:
        spans = []
        for i in range(len(self.ids)):
            start, end = self._character(self._bytes[i]), self._character(self._bytes[i + 1])
            bits = self._bits(i, i + 1)
            spans.append(
                ScoredSpan(
                    self.text[start:end],
                    start,
                    end,
                    bits,
                    bits,
                    self._entropy(i),
                    int(self._found.rank[i]),
                    1,
                )
            )
        return spans

    @cached_property
    def words(self) -> list[ScoredSpan]:
        """The words: what stands between white space."""
        return self.over([found.span() for found in WORD.finditer(self.text)])

    def over(self, spans: Sequence[Span]) -> list[ScoredSpan]:
        """Any spans of the text, in order and without overlap, from character to character.

        White space before a span counts as part of it. A token that belongs to two spans counts for that in
        which it begins.
        """
        end = 0
        for start, stop in spans:
            if not end <= start < stop <= len(self.text):
                raise SettingError(
                    f"the span ({start}, {stop}) is not in order: spans follow each other without overlap, "
                    f"within the {len(self.text)} characters of the text."
                )
            end = stop
        return [self._span(start, stop) for start, stop in spans]

    def _span(self, start: int, stop: int) -> ScoredSpan:
        opened = start  # with the white space before it
        while opened and self.text[opened - 1] in " \t\n\r\v\f":
            opened -= 1
        first = bisect.bisect_left(self._bytes, self._characters[opened])
        after = bisect.bisect_left(self._bytes, self._characters[stop])
        after = min(after, len(self.ids))
        token_bits = self._bits(first, after)
        bits = token_bits
        if after > first:  # otherwise it lies within a token of the span before it
            if opened < start:
                bits += self._found.new_word[first] / math.log(2)
            elif opened == 0:
                bits += self._found.same_word[first] / math.log(2)
            if stop == len(self.text) or self.text[stop] in " \t\n\r\v\f":
                bits -= self._found.new_word[after] / math.log(2)
        place = min(first, len(self.ids) - 1)
        rank = int(self._found.rank[place])
        return ScoredSpan(
            self.text[start:stop],
            start,
            stop,
            float(bits),
            token_bits,
            self._entropy(first),
            rank,
            after - first,
        )

    def _bits(self, first: int, after: int) -> float:
        return float(-self._found.target[first:after].sum() / math.log(2))

    def _entropy(self, place: int) -> float:
        return float(self._found.entropy[place] / math.log(2))

    def _character(self, byte: int) -> int:
        """The character in which a byte lies; a token may begin within one."""
        return bisect.bisect_right(self._characters, byte) - 1


class SurprisalTexts(Sequence[SurprisalText]):
    """Several scored texts; `to_pandas()` makes a table of them."""

    def __init__(self, texts: Sequence[SurprisalText]) -> None:
        self._texts = list(texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: Any) -> Any:
        return self._texts[index]

    def __repr__(self) -> str:
        return f"SurprisalTexts({len(self)} texts, {sum(text.bits for text in self._texts):.1f} bits)"

    def rows(self, by: str = "word") -> Iterator[dict[str, Any]]:
        """A row for each token or word, with the number of its text and its own."""
        for number, text in enumerate(self._texts):
            for index, span in enumerate(text.tokens if by == "token" else text.words):
                yield {"text_number": number, "number": index, **asdict(span)}

    def to_pandas(self, by: str = "word") -> Any:
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError:
            raise UserError("to_pandas() needs pandas. Type: pip install pandas") from None
        return pandas.DataFrame(self.rows(by))


def score_texts(
    gpt: LanguageModel,
    texts: Sequence[str],
    *,
    bos: bool = True,
    context: int | None = None,
    stride: int | None = None,
    progress: Progress = no_progress,
) -> Iterator[SurprisalText]:
    """See `GPT.score`; the texts come as they are computed."""
    tokenizer = gpt.require_tokenizer("scoring texts")
    context = gpt.config.n_positions if context is None else context
    check_whole("context", context, 2, gpt.config.n_positions, "this model's context")
    stride = max(1, context // 2) if stride is None else stride
    check_whole("stride", stride, 1, context, "the context")
    prefix = tokenizer.eot_id if bos else None
    ids = [tokenizer.encode(text) for text in texts]
    for number, (text, some) in enumerate(zip(texts, ids, strict=True)):
        if not some or tokenizer.decode_bytes(some) != text.encode("utf-8", "surrogatepass"):
            problem = "is empty" if not some else "does not come back from its tokens unchanged"
            raise SettingError(f"text {number} {problem}. Give texts that this model's tokenizer can write.")
    total = sum(len(some) for some in ids) + (0 if prefix is None else len(ids))
    with progress("scoring", total) as advance:
        found = compute_distributions(gpt, ids, prefix, starts_word(gpt), context, stride, advance)
        for text, some, distributions in zip(texts, ids, found, strict=True):
            yield SurprisalText(text, some, [tokenizer.token_bytes(i) for i in some], distributions)
