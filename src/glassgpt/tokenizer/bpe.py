"""GPT-2's byte-level byte-pair encoding, written to be read.

A text is split into words (`pre_tokenizer.PATTERN`) and a word into its UTF-8 bytes. Then the adjacent pair
with the lowest rank is merged, again and again, until no adjacent pair has a rank. The remaining pieces are
the tokens. `explain` shows every step; `fast.py` computes the same ids with a compiled library.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from glassgpt.tokenizer.base import Merge, Tokenizer, WordMerges, lookup_token
from glassgpt.tokenizer.pre_tokenizer import END_OF_TEXT, replace_surrogates, require_str, split_words

if TYPE_CHECKING:
    from glassgpt.tokenizer.fast import FastEngine

Pair = tuple[int, int]

# Up to this length, scanning all pairs after every merge is as fast as the heap; beyond, it is quadratic.
SHORT_WORD = 40

# Building the engine takes 0.3 s for GPT-2's vocabulary, in which bpe.py encodes half a megabyte of English:
# a prompt is faster without it. Not more than this, because the worst text (only emoji) is encoded at 200,000
# characters per second.
FIRST_CHARACTERS = 50_000

# Words repeat (Zipf): this many are cached.
CACHED_WORDS = 200_000
CACHED_LENGTH = 64


@dataclass(frozen=True)
class BPEVocabulary:
    """The data of a byte-level BPE: the bytes of each id, and the merges by rank."""

    tokens: tuple[bytes | None, ...]  # by id; None for an unused id
    merges: tuple[Pair, ...]  # pairs of ids, by rank
    merged: tuple[int, ...]  # the id of each merged pair
    special: Mapping[str, int]  # recognized in text only with allow_special
    added: Mapping[str, int]  # recognized in every text, first (tokens added by a user)

    @property
    def byte_ids(self) -> list[int]:
        """The id of each of the 256 bytes."""
        return [self.tokens.index(bytes([byte])) for byte in range(256)]


class BPETokenizer(Tokenizer):
    """Byte-level BPE over a vocabulary.

    `fast=None` encodes the first `FIRST_CHARACTERS` in Python and then switches to the fast engine, if it is
    installed; False never uses it, True from the start. The ids are the same.
    """

    kind: ClassVar[str] = "bpe"

    def __init__(self, vocabulary: BPEVocabulary, fast: bool | None = None) -> None:
        self.data = vocabulary
        self._fast = fast
        self._characters_left = -1 if fast else FIRST_CHARACTERS  # before the engine is built
        self._engine: FastEngine | None = None
        self._engine_wanted = fast is not False
        self.eot_id = vocabulary.special.get(END_OF_TEXT)
        self._tokens = vocabulary.tokens
        self._byte_ids = vocabulary.byte_ids
        self._ranks = {
            pair: (rank, new_id)
            for rank, (pair, new_id) in enumerate(zip(vocabulary.merges, vocabulary.merged, strict=True))
        }
        self._cache: dict[str, list[int]] = {}
        self._added_pattern = _compile_names(vocabulary.added)
        self._special_pattern = _compile_names({**vocabulary.special, **vocabulary.added})

    def __reduce__(self) -> tuple[type[BPETokenizer], tuple[BPEVocabulary, bool | None]]:
        return BPETokenizer, (self.data, self._fast)  # the engine is not pickled

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def text_size(self) -> int:
        return 1 + max((*self._byte_ids, *self.data.merged))

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(self.data.special)

    # Text to ids.

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        engine = self._engine_for(require_str(text))
        if engine is None:
            return self.encode_readable(text, allow_special)
        lists = []
        for piece, token_id in self._pieces(text, allow_special):
            lists.append(engine.encode(piece))
            if token_id is not None:
                lists.append([token_id])
        return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))

    def encode_array(self, text: str, allow_special: bool = False) -> npt.NDArray[np.uint32]:
        engine = self._engine_for(require_str(text))
        if engine is None:
            return np.array(self.encode_readable(text, allow_special), dtype=np.uint32)
        arrays = []
        for piece, token_id in self._pieces(text, allow_special):
            arrays.append(engine.encode_array(piece))
            if token_id is not None:
                arrays.append(np.array([token_id], dtype=np.uint32))
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def _engine_for(self, text: str) -> FastEngine | None:
        """The fast engine, once there was enough text to make building it worthwhile."""
        if self._engine is None and self._engine_wanted:
            self._characters_left -= len(text)
            if self._characters_left < 0:
                from glassgpt.tokenizer.fast import build_fast_engine

                self._engine = build_fast_engine(self)
                self._engine_wanted = False
        return self._engine

    def encode_readable(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids by the Python implementation, whatever is installed."""
        ids: list[int] = []
        for piece, token_id in self._pieces(replace_surrogates(text), allow_special):
            for word in split_words(piece):
                ids += self._encode_word(word)
            if token_id is not None:
                ids.append(token_id)
        return ids

    def _pieces(self, text: str, allow_special: bool) -> Iterator[tuple[str, int | None]]:
        """Ordinary text, each with the id of the special or added token after it (None at the end)."""
        finder = self._special_pattern if allow_special else self._added_pattern
        start = 0
        if finder is not None:
            for match in finder.finditer(text):
                name = match.group()
                token_id = self.data.added.get(name)
                yield text[start : match.start()], self.data.special[name] if token_id is None else token_id
                start = match.end()
        yield text[start:], None

    def _encode_word(self, word: str) -> list[int]:
        ids = self._cache.get(word)
        if ids is None:
            ids = self._merge([self._byte_ids[byte] for byte in word.encode("utf-8")])
            if len(word) <= CACHED_LENGTH:
                if len(self._cache) >= CACHED_WORDS:
                    self._cache.clear()  # rare, and cheaper than an LRU order
                self._cache[word] = ids
        return ids

    def _merge(self, ids: list[int]) -> list[int]:
        if len(ids) > SHORT_WORD:
            return merge_with_heap(ids, self._ranks)
        result = ids
        for _, result in self._steps(ids):  # noqa: B007  # the last step is the result
            pass
        return result

    def _steps(self, ids: list[int]) -> Iterator[tuple[int, list[int]]]:
        """The core: merge the pair with the lowest rank everywhere; yields (its rank, the ids after it)."""
        joins = self._ranks
        never = (len(joins), -1)
        while len(ids) > 1:
            rank, new_id = min(joins.get(pair, never) for pair in pairwise(ids))
            if new_id < 0:
                return
            ids = merge_pair(ids, self.data.merges[rank], new_id)
            yield rank, ids

    def explain(self, text: str, allow_special: bool = False) -> list[WordMerges]:
        """Every word of the text with all its merges."""
        words: list[WordMerges] = []
        for piece, token_id in self._pieces(replace_surrogates(text), allow_special):
            words += [self._explain_word(word) for word in split_words(piece)]
            if token_id is not None:
                name = self.token_bytes(token_id)
                words.append(WordMerges(name.decode("utf-8", "replace"), (name,), (), (token_id,)))
        return words

    def _explain_word(self, word: str) -> WordMerges:
        ids = first = [self._byte_ids[byte] for byte in word.encode("utf-8")]
        merges = []
        for rank, ids in self._steps(first):
            left, right = self._pieces_of(self.data.merges[rank])
            merges.append(Merge(rank, left, right, self._pieces_of(ids)))
        return WordMerges(word, self._pieces_of(first), tuple(merges), tuple(ids))

    def _pieces_of(self, ids: Iterable[int]) -> tuple[bytes, ...]:
        return tuple(self.token_bytes(token_id) for token_id in ids)

    # Ids to text.

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        ids = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        try:
            if not ids or min(ids) >= 0:
                return b"".join([self._tokens[token_id] for token_id in ids])  # type: ignore[misc]
        except (TypeError, IndexError):
            pass
        return super().decode_bytes(ids)  # slower, and names the invalid id

    def token_bytes(self, token_id: int) -> bytes:
        return lookup_token(self, token_id, self._tokens)

    # Files.

    def files(self) -> dict[str, str]:
        from glassgpt.tokenizer import gpt2_files, tokenizer_json

        return {**gpt2_files.write(self.data), **tokenizer_json.write(self.data)}

    def vocabulary(self) -> object:
        data = self.data
        tokens = [None if token is None else token.hex() for token in data.tokens]
        return [tokens, data.merges, data.merged, dict(data.special), dict(data.added)]


def merge_pair(ids: Sequence[int], pair: Pair, new_id: int) -> list[int]:
    """Replace every occurrence of the pair, from left to right, by its merged id."""
    left, right = pair
    result: list[int] = []
    i = 0
    while i < len(ids):
        if i + 1 < len(ids) and ids[i] == left and ids[i + 1] == right:
            result.append(new_id)
            i += 2
        else:
            result.append(ids[i])
            i += 1
    return result


def merge_with_heap(ids: list[int], joins: Mapping[Pair, tuple[int, int]]) -> list[int]:
    """The same merges in O(n log n): a linked list of pieces and a heap of mergeable pairs.

    A word may have a million letters; scanning all pairs after every merge would take hours.
    """
    ids = list(ids)
    n = len(ids)
    after = list(range(1, n + 1))  # links of the list; n is the end
    before = list(range(-1, n - 1))
    heap = [(*join, i, ids[i], ids[i + 1]) for i in range(n - 1) if (join := joins.get((ids[i], ids[i + 1])))]
    heapq.heapify(heap)
    while heap:
        _, new_id, i, left, right = heapq.heappop(heap)
        j = after[i]
        if ids[i] != left or j >= n or ids[j] != right:
            continue  # one of the two was merged with its other neighbor
        ids[i] = new_id
        ids[j] = -1
        after[i] = j = after[j]
        if j < n:
            before[j] = i
            if join := joins.get((new_id, ids[j])):
                heapq.heappush(heap, (*join, i, new_id, ids[j]))
        h = before[i]
        if h >= 0 and (join := joins.get((ids[h], new_id))):
            heapq.heappush(heap, (*join, h, ids[h], new_id))
    return [token_id for token_id in ids if token_id >= 0]


def _compile_names(names: Mapping[str, int]) -> re.Pattern[str] | None:
    """A pattern that matches these names, the longest first."""
    if not names:
        return None
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
