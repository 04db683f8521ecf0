"""tiktoken's files: one line per token, its bytes in base64 and its rank, which is also its id."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from glassgpt.errors import FileFormatError
from glassgpt.files import read_text
from glassgpt.tokenizer.bpe import BPEVocabulary, Pair, merge_with_heap
from glassgpt.tokenizer.files import LARGEST_FILE
from glassgpt.tokenizer.gpt2_files import HIGHEST_ID
from glassgpt.tokenizer.pre_tokenizer import END_OF_TEXT

# A .tiktoken file does not contain the pattern that splits text. These two have other patterns.
OTHER_PATTERNS = {100_256: "cl100k_base", 199_998: "o200k_base"}


def read(path: Path) -> BPEVocabulary:
    """Read the ranks, find the merge behind each token, and put `<|endoftext|>` at the first free id."""
    ranks = _ranks(path)
    if len(ranks) in OTHER_PATTERNS:
        name = OTHER_PATTERNS[len(ranks)]
        raise FileFormatError(f"{path} looks like {name}, whose pattern is not GPT-2's; it is not supported")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise FileFormatError(
            f"{path} has no token for {len(missing)} of the 256 bytes, such as 0x{missing[0]:02x}"
        )
    merges, merged = _recover_merges(path, ranks)
    by_id = {rank: token for token, rank in ranks.items()}
    eot = next(i for i in range(len(by_id) + 1) if i not in by_id)
    by_id[eot] = END_OF_TEXT.encode()
    tokens = tuple(by_id.get(i) for i in range(max(by_id) + 1))
    return BPEVocabulary(tokens, tuple(merges), tuple(merged), {END_OF_TEXT: eot}, {})


def _ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    seen: set[int] = set()
    for number, line in enumerate(read_text(path, LARGEST_FILE).splitlines(), start=1):
        if not line:
            continue
        try:
            encoded, rank_text = line.split(" ")
            token, rank = base64.b64decode(encoded, validate=True), int(rank_text)
        except (ValueError, binascii.Error):
            raise FileFormatError(
                f"{path}, line {number} is not a token in base64 and its rank: {line[:80]!r}"
            ) from None
        if not token or not 0 <= rank < HIGHEST_ID or token in ranks or rank in seen:
            raise FileFormatError(
                f"{path}, line {number}: the token or the rank {rank} is empty, repeated or out of range"
            )
        ranks[token] = rank
        seen.add(rank)
    return ranks


def _recover_merges(path: Path, ranks: dict[bytes, int]) -> tuple[list[Pair], list[int]]:
    """The two parts of each token: its bytes, merged by the merges of lower rank."""
    joins: dict[Pair, tuple[int, int]] = {}
    merges, merged = [], []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = merge_with_heap([ranks[bytes([byte])] for byte in token], joins)
        if len(parts) != 2:
            raise FileFormatError(
                f"{path}: token {token!r} of rank {rank} is not two earlier ones joined; the ranks are wrong"
            )
        pair = (parts[0], parts[1])
        joins[pair] = (rank, rank)
        merges.append(pair)
        merged.append(rank)
    return merges, merged
