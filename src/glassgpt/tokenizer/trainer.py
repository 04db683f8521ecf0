"""Training a byte-level BPE: count the words, then repeatedly merge the most frequent adjacent pair.

Only counting reads the text, a chunk at a time, so memory is bounded by the number of distinct words
(`max_words`), not by the size of the files. Merging works on the table of words; after each merge only the
words with that pair are updated.
"""

from __future__ import annotations

import heapq
import multiprocessing
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path

from glassgpt.errors import SettingError
from glassgpt.progress import Advance, Progress, no_progress
from glassgpt.tokenizer.base import PathLike
from glassgpt.tokenizer.bpe import BPETokenizer, BPEVocabulary, Pair
from glassgpt.tokenizer.pre_tokenizer import END_OF_TEXT, bytes_in_id_order, split_words
from glassgpt.tokenizer.text_chunks import checked_files, read_batches

# A longer word (a line of base64, a run of spaces) is counted in pieces: its tail is of no use.
LONGEST_WORD = 1024


def train(
    files: Iterable[PathLike] | PathLike,
    vocab_size: int,
    *,
    min_count: int = 2,
    max_words: int = 1_000_000,
    max_bytes: int | None = None,
    workers: int = 1,
    progress: Progress = no_progress,
) -> BPETokenizer:
    """Learn a vocabulary of `vocab_size` tokens: 256 bytes, merges, and `<|endoftext|>` as the last id.

    `files` are .txt, .jsonl or .parquet with a "text" field, also compressed (.gz, .xz, .zst). `max_bytes`
    stops reading after that much text. `min_count` is how often a pair must occur to be merged: with little
    text the vocabulary may end up smaller than requested.
    """
    if not isinstance(vocab_size, int) or vocab_size < 257:
        raise SettingError(
            f"vocab_size is {vocab_size!r}; it must be at least 257 (256 bytes and {END_OF_TEXT})"
        )
    if min_count < 1 or max_words < 1 or workers < 1 or (max_bytes is not None and max_bytes < 1):
        raise SettingError("min_count, max_words, workers and max_bytes must be at least 1")
    paths = checked_files(files)
    words = count_words(paths, max_words=max_words, max_bytes=max_bytes, workers=workers, progress=progress)
    if not words:
        raise SettingError(
            f"no text in {', '.join(str(path) for path in paths)}; give files with text to learn from"
        )
    pairs = learn_merges(words, vocab_size - 257, min_count=min_count, progress=progress)
    return BPETokenizer(vocabulary_from_merges(pairs))


def train_on(texts: Iterable[str], vocab_size: int, *, min_count: int = 2) -> BPETokenizer:
    """The same from an iterable of texts; none of them should end within a word."""
    counts: Counter[str] = Counter()
    _sum_counts(counts, (count_words_of_texts([text]) for text in texts), max_words=1_000_000)
    return BPETokenizer(vocabulary_from_merges(learn_merges(counts, vocab_size - 257, min_count=min_count)))


def vocabulary_from_merges(pairs: list[tuple[bytes, bytes]]) -> BPEVocabulary:
    """GPT-2's order of ids: the bytes, a token per merge, `<|endoftext|>` last."""
    tokens = [bytes([byte]) for byte in bytes_in_id_order()]
    ids = {token: i for i, token in enumerate(tokens)}
    merges, merged = [], []
    for left, right in pairs:
        token = left + right
        if token not in ids:  # two merges can make the same token
            ids[token] = len(tokens)
            tokens.append(token)
        merges.append((ids[left], ids[right]))
        merged.append(ids[token])
    special = {END_OF_TEXT: len(tokens)}
    tokens.append(END_OF_TEXT.encode())
    return BPEVocabulary(tuple(tokens), tuple(merges), tuple(merged), special, {})


# Counting.


def count_words(
    paths: list[Path],
    *,
    max_words: int,
    max_bytes: int | None,
    workers: int,
    progress: Progress = no_progress,
) -> Counter[str]:
    """How often each word occurs in the files."""
    counts: Counter[str] = Counter()
    with progress("counting words", max_bytes, unit="bytes") as advance:
        batches = _advancing(read_batches(paths, max_bytes), advance)
        if workers == 1:
            _sum_counts(counts, map(count_words_of_texts, batches), max_words)
        else:
            with multiprocessing.get_context("spawn").Pool(workers) as pool:
                _sum_counts(counts, pool.imap(count_words_of_texts, batches), max_words)
    return counts


def _advancing(batches: Iterable[list[str]], advance: Advance) -> Iterator[list[str]]:
    for batch in batches:
        yield batch
        advance(sum(map(len, batch)))


def count_words_of_texts(texts: list[str]) -> Counter[str]:
    """How often each word occurs in these texts."""
    counts = Counter(chain.from_iterable(map(split_words, texts)))
    for word in [word for word in counts if len(word) > LONGEST_WORD]:
        times = counts.pop(word)
        for start in range(0, len(word), LONGEST_WORD):
            counts[word[start : start + LONGEST_WORD]] += times
    return counts


def _sum_counts(counts: Counter[str], tallies: Iterable[Counter[str]], max_words: int) -> None:
    """Sum the counts; beyond `max_words` distinct words, drop the rarest."""
    for tally in tallies:
        counts.update(tally)
        rare = 1
        while len(counts) > max_words:
            for word in [word for word, times in counts.items() if times <= rare]:
                del counts[word]
            rare *= 2


# Merging.


def learn_merges(
    word_counts: Counter[str], n_merges: int, *, min_count: int = 2, progress: Progress = no_progress
) -> list[tuple[bytes, bytes]]:
    """The merged pairs, in order.

    Among equally frequent pairs the one with the smaller ids is first, as in Hugging Face's trainer, so the
    same counts always give the same vocabulary.
    """
    order = bytes_in_id_order()
    byte_id = {byte: i for i, byte in enumerate(order)}
    tokens = [bytes([byte]) for byte in order]
    token_ids = {token: i for i, token in enumerate(tokens)}
    words: list[list[int]] = []
    times: list[int] = []
    for word, count in word_counts.items():
        words.append([byte_id[byte] for byte in word.encode("utf-8")])
        times.append(count)

    pair_counts: defaultdict[Pair, int] = defaultdict(int)
    where: defaultdict[Pair, list[int]] = defaultdict(list)  # the words that have (or had) the pair
    for index, ids in enumerate(words):
        for pair in pairwise(ids):
            pair_counts[pair] += times[index]
            _note(where[pair], index)
    heap = [(-count, pair) for pair, count in pair_counts.items()]
    heapq.heapify(heap)

    learned: list[tuple[bytes, bytes]] = []
    with progress("learning merges", n_merges) as advance:
        while heap and len(tokens) < 256 + n_merges:
            negative, pair = heapq.heappop(heap)
            count = pair_counts.get(pair, 0)
            if count != -negative:  # outdated: the count has changed
                if count > 0:
                    heapq.heappush(heap, (-count, pair))
                continue
            if count < min_count:
                break
            left, right = pair
            token = tokens[left] + tokens[right]
            new_id = token_ids.get(token)
            if new_id is None:
                new_id = token_ids[token] = len(tokens)
                tokens.append(token)
            learned.append((tokens[left], tokens[right]))
            for grown in _merge_in_words(pair, new_id, words, times, pair_counts, where):
                heapq.heappush(heap, (-pair_counts[grown], grown))
            if len(learned) % 50 == 0:
                advance(50)
    return learned


def _merge_in_words(
    pair: Pair,
    new_id: int,
    words: list[list[int]],
    times: list[int],
    pair_counts: defaultdict[Pair, int],
    where: defaultdict[Pair, list[int]],
) -> set[Pair]:
    """Merge the pair in all words, update the counts; returns the pairs whose counts increased."""
    left, right = pair
    grown: set[Pair] = set()
    for index in where.pop(pair):
        ids = words[index]
        n = times[index]
        result: list[int] = []
        i, last = 0, len(ids) - 1
        while i <= last:
            here = ids[i]
            if here == left and i < last and ids[i + 1] == right:
                if result:
                    # The previous piece may be `new_id` itself, merged just before; then the pair that is
                    # lost is (new_id, left), which that merge has just counted.
                    before = result[-1]
                    pair_counts[before, left] -= n
                    new = (before, new_id)
                    pair_counts[new] += n
                    _note(where[new], index)
                    grown.add(new)
                if i + 1 < last:
                    behind = ids[i + 2]
                    pair_counts[right, behind] -= n
                    new = (new_id, behind)
                    pair_counts[new] += n
                    _note(where[new], index)
                    grown.add(new)
                result.append(new_id)
                i += 2
            else:
                result.append(here)
                i += 1
        words[index] = result
    pair_counts.pop(pair, None)
    return grown


def _note(indices: list[int], index: int) -> None:
    """Add a word once; a list, because a set takes five times the memory."""
    if not indices or indices[-1] != index:
        indices.append(index)
