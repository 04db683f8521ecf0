"""Text to ids and back: byte-level BPE as GPT-2 has it, characters, bytes.

Read in this order: alphabet.py (words and bytes), base.py (what every tokenizer does), bpe.py (the merges),
fast.py (the same by a compiled engine), trainer.py (learning the merges), plain.py (characters and bytes),
files.py and the format modules beside it.
"""

from glassgpt.tokenizer.base import Merge, TextStream, Tokenizer, Word
from glassgpt.tokenizer.bpe import BPETokenizer
from glassgpt.tokenizer.plain import ByteTokenizer, CharTokenizer

__all__ = ["BPETokenizer", "ByteTokenizer", "CharTokenizer", "Merge", "TextStream", "Tokenizer", "Word"]
