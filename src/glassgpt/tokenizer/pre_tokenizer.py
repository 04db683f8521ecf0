"""GPT-2's byte-level pre-tokenization: splitting text into words, and bytes as printable characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from glassgpt.errors import UserError
from glassgpt.tokenizer.categories import LETTERS, NUMBERS, WHITE_SPACE

END_OF_TEXT = "<|endoftext|>"

# One alternative per kind of word, in this order: English contractions, letters, digits, all other printable
# characters (each with one leading space), then runs of white space. The lookahead leaves the last space of a
# run to the next word.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# The same for ASCII words followed by ASCII, tried first: it skips the large tables (3.5 times as fast on
# English). The possessive ++ prevents matching the ASCII prefix of a word that continues in Unicode.
_ASCII_FIRST = (
    r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]++(?!@)| ?[0-9]++(?!@)| ?[^\t-\r 0-9A-Za-z\x80-\U0010ffff]++(?!@)|"
)


def _characters(ranges: str) -> str:
    """Hexadecimal ranges as the contents of a character class."""
    ends = ([f"\\U{int(end, 16):08x}" for end in part.split("-")] for part in ranges.split())
    return "".join("-".join(part) for part in ends)


@cache
def _word_pattern() -> re.Pattern[str]:
    letters, numbers, spaces = _characters(LETTERS), _characters(NUMBERS), _characters(WHITE_SPACE)
    pattern = PATTERN.replace(r"[^\s\p{L}\p{N}]", f"[^{spaces}{letters}{numbers}]")
    pattern = pattern.replace(r"\p{L}", f"[{letters}]").replace(r"\p{N}", f"[{numbers}]")
    pattern = pattern.replace(r"\s", f"[{spaces}]").replace(r"\S", f"[^{spaces}]")
    return re.compile(_ASCII_FIRST.replace("@", r"[^\x00-\x7f]") + pattern)


@cache
def _ascii_word_pattern() -> re.Pattern[str]:
    """The pattern for ASCII text: compiling the tables of Unicode takes longer than encoding a prompt."""
    pattern = PATTERN.replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]")
    pattern = pattern.replace(r"[^\s[A-Za-z][0-9]]", r"[^\t-\r 0-9A-Za-z]")
    return re.compile(pattern.replace(r"\s", r"[\t-\r ]").replace(r"\S", r"[^\t-\r ]"))


def split_words(text: str) -> list[str]:
    """Split a text into words, within which merges happen; concatenated they are the text again."""
    return (_ascii_word_pattern() if text.isascii() else _word_pattern()).findall(text)


@cache
def white_space_characters() -> frozenset[str]:
    """The 25 characters that \\s matches in the pattern (Python's isspace() has four more)."""
    pattern = re.compile(f"[{_characters(WHITE_SPACE)}]")
    return frozenset(pattern.findall("".join(map(chr, range(0x3001)))))


@cache
def _word_end() -> re.Pattern[str]:
    spaces = _characters(WHITE_SPACE)
    return re.compile(f"[^{spaces}](?=[{spaces}])")


def last_word_end(text: str, limit: int, start: int = 0) -> int | None:
    """The last position after `start`, up to `limit`, where a text can be split without changing its words.

    No word crosses the boundary between a printable character and the white space after it.
    """
    spaces = white_space_characters()
    for cut in range(min(limit, len(text) - 1), start, -1):
        if text[cut] in spaces and text[cut - 1] not in spaces:
            return cut
    return None


def split_into_pieces(text: str, size: int) -> Iterator[str]:
    """Pieces of about `size` characters with the same words; longer ones where there is no place to split."""
    start = 0
    while len(text) - start > size:
        cut = last_word_end(text, start + size, start)
        if cut is None:
            word_end = _word_end().search(text, start + size)
            if word_end is None:
                break
            cut = word_end.end()
        yield text[start:cut]
        start = cut
    yield text[start:]


class NotTextError(UserError, TypeError):
    """Something other than a str where text was expected."""


def require_str(text: object) -> str:
    """The text itself; raises if it is not a str."""
    if not isinstance(text, str):
        hint = "; decode it first, as in data.decode('utf-8')" if isinstance(text, bytes | bytearray) else ""
        raise NotTextError(f"a text to encode must be a str, not {type(text).__name__}{hint}")
    return text


def replace_surrogates(text: object) -> str:
    """The text with every character encodable as UTF-8.

    Like tiktoken, surrogate pairs are joined and a lone surrogate is replaced by U+FFFD, so that any Python
    str can be encoded.
    """
    text = require_str(text)
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@cache
def bytes_to_unicode() -> tuple[str, ...]:
    """The character for each byte in vocabulary files.

    Bytes that are printable in Latin-1 stay; the other 68 (controls, space, soft hyphen, ...) are
    mapped, in order, to U+0100 and up, so that no token in a file contains white space: a space becomes Ġ.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = iter(range(256, 512))
    return tuple(chr(byte) if byte in visible else chr(next(moved)) for byte in range(256))


@cache
def unicode_to_bytes() -> dict[str, int]:
    """The byte for each of those characters."""
    return {char: byte for byte, char in enumerate(bytes_to_unicode())}


@cache
def bytes_in_id_order() -> tuple[int, ...]:
    """The bytes in the order of their GPT-2 ids: `!` is 0, the moved ones come last (`Ġ` is 220)."""
    return tuple(sorted(range(256), key=lambda byte: bytes_to_unicode()[byte]))


@cache
def _latin_to_visible() -> dict[int, str]:
    return dict(enumerate(bytes_to_unicode()))


def to_visible(data: bytes) -> str:
    """Bytes as those characters: b" the" -> "Ġthe"."""
    return data.decode("latin-1").translate(_latin_to_visible())


def from_visible(token: Iterable[str]) -> bytes:
    """Undo `to_visible`; KeyError for any other character."""
    table = unicode_to_bytes()
    return bytes([table[char] for char in token])
