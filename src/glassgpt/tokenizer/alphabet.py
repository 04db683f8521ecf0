"""GPT-2's two alphabets: how text is cut into words, and how bytes are written as visible characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from glassgpt.errors import UserError
from glassgpt.tokenizer.categories import LETTERS, NUMBERS, WHITE_SPACE

END_OF_TEXT = "<|endoftext|>"

# One alternative per kind of word, tried in this order: English contractions, letters, digits, everything
# else that is visible (each with the one space before it), then runs of white space. The lookahead leaves
# the last space of a run to the word that follows it.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# The same for words of ASCII followed by ASCII, tried before: it skips the large tables (3.5 times as fast on
# English). The possessive ++ keeps it from matching the front part of a word that goes on in Unicode.
_ASCII_FIRST = (
    r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]++(?!@)| ?[0-9]++(?!@)| ?[^\t-\r 0-9A-Za-z\x80-\U0010ffff]++(?!@)|"
)


def _characters(ranges: str) -> str:
    """Hexadecimal ranges as the inside of a character class."""
    ends = ([f"\\U{int(end, 16):08x}" for end in part.split("-")] for part in ranges.split())
    return "".join("-".join(part) for part in ends)


@cache
def _word_pattern() -> re.Pattern[str]:
    letters, numbers, spaces = _characters(LETTERS), _characters(NUMBERS), _characters(WHITE_SPACE)
    pattern = PATTERN.replace(r"[^\s\p{L}\p{N}]", f"[^{spaces}{letters}{numbers}]")
    pattern = pattern.replace(r"\p{L}", f"[{letters}]").replace(r"\p{N}", f"[{numbers}]")
    pattern = pattern.replace(r"\s", f"[{spaces}]").replace(r"\S", f"[^{spaces}]")
    return re.compile(_ASCII_FIRST.replace("@", r"[^\x00-\x7f]") + pattern)


def split_words(text: str) -> list[str]:
    """Cut a text into the words within which merges happen; joined together they are the text again."""
    return _word_pattern().findall(text)


@cache
def white_space() -> frozenset[str]:
    """The 25 characters that the pattern's \\s stands for (Python's isspace() has four more)."""
    pattern = re.compile(f"[{_characters(WHITE_SPACE)}]")
    return frozenset(pattern.findall("".join(map(chr, range(0x3001)))))


@cache
def _word_end() -> re.Pattern[str]:
    spaces = _characters(WHITE_SPACE)
    return re.compile(f"[^{spaces}](?=[{spaces}])")


def word_end_before(text: str, limit: int, start: int = 0) -> int | None:
    """The last place after `start`, up to `limit`, where a text can be cut without changing its words.

    No word reaches across the place between a visible character and white space after it.
    """
    spaces = white_space()
    for cut in range(min(limit, len(text) - 1), start, -1):
        if text[cut] in spaces and text[cut - 1] not in spaces:
            return cut
    return None


def split_at_words(text: str, size: int) -> Iterator[str]:
    """Pieces of about `size` characters with the same words; longer ones where there is no place to cut."""
    start = 0
    while len(text) - start > size:
        cut = word_end_before(text, start + size, start)
        if cut is None:
            found = _word_end().search(text, start + size)
            if found is None:
                break
            cut = found.end()
        yield text[start:cut]
        start = cut
    yield text[start:]


class NotTextError(UserError, TypeError):
    """Something other than a str where text was wanted."""


def checked_str(text: object) -> str:
    """The text itself, or an error that says what was given instead of text."""
    if not isinstance(text, str):
        hint = "; decode it first, as in data.decode('utf-8')" if isinstance(text, bytes | bytearray) else ""
        raise NotTextError(f"a text to encode must be a str, not {type(text).__name__}{hint}")
    return text


def checked_text(text: object) -> str:
    """The text with every character encodable.

    Half a surrogate pair has no UTF-8 form. Like tiktoken we join pairs that belong together and put U+FFFD
    in the place of a lone half, so that any Python str can be encoded.
    """
    text = checked_str(text)
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@cache
def byte_to_char() -> tuple[str, ...]:
    """The character that stands for each byte in vocabulary files.

    Bytes that print as themselves in Latin-1 stay; the other 68 (controls, space, soft hyphen, ...) are
    moved, in order, to U+0100 and up, so that no token in a file holds white space: a space becomes Ġ.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = iter(range(256, 512))
    return tuple(chr(byte) if byte in visible else chr(next(moved)) for byte in range(256))


@cache
def char_to_byte() -> dict[str, int]:
    """The byte that each character of the visible alphabet stands for."""
    return {char: byte for byte, char in enumerate(byte_to_char())}


@cache
def bytes_in_id_order() -> tuple[int, ...]:
    """The bytes in the order of their GPT-2 ids: `!` is 0, the moved ones come last (`Ġ` is 220)."""
    return tuple(sorted(range(256), key=lambda byte: byte_to_char()[byte]))


@cache
def _latin_to_visible() -> dict[int, str]:
    return dict(enumerate(byte_to_char()))


def to_visible(data: bytes) -> str:
    """Write bytes in the visible alphabet: b" the" -> "Ġthe"."""
    return data.decode("latin-1").translate(_latin_to_visible())


def from_visible(token: Iterable[str]) -> bytes:
    """Undo `to_visible`; KeyError for a character outside the alphabet."""
    table = char_to_byte()
    return bytes([table[char] for char in token])
