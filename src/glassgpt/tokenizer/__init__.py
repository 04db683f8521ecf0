"""Tokenizers: GPT-2's byte-level BPE, characters, bytes, events of music.

Read in this order: pre_tokenizer.py (words and bytes), base.py (the interface), bpe.py (the merges),
fast.py (the same ids by a compiled library), trainer.py (learning the merges), char_level.py (characters and
bytes), events.py (music), files.py (loading) and one module per file format.
"""

from glassgpt.tokenizer.base import DecodeStream, Merge, Tokenizer, WordMerges
from glassgpt.tokenizer.bpe import BPETokenizer
from glassgpt.tokenizer.char_level import ByteTokenizer, CharTokenizer
from glassgpt.tokenizer.events import ChoraleTokenizer, EventTokenizer

__all__ = [
    "BPETokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "ChoraleTokenizer",
    "DecodeStream",
    "EventTokenizer",
    "Merge",
    "Tokenizer",
    "WordMerges",
]
