"""GPT-2's two alphabets: how text is cut into words, and how bytes are written as visible characters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import regex

from glassgpt.errors import UserError

END_OF_TEXT = "<|endoftext|>"

# One alternative per kind of word, tried in this order: English contractions, letters, digits, everything
# else that is visible (each with the one space before it), then runs of white space. The lookahead leaves
# the last space of a run to the word that follows it.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_find_words = regex.compile(PATTERN).findall


class NotTextError(UserError, TypeError):
    """Something other than a str where text was wanted."""


def split_words(text: str) -> list[str]:
    """Cut a text into the words within which merges happen; joined together they are the text again."""
    words: list[str] = _find_words(text)
    return words


def checked_text(text: object) -> str:
    """Return the text with every character encodable, or say what was given instead of text.

    Half a surrogate pair has no UTF-8 form. Like tiktoken we join pairs that belong together and put
    U+FFFD in the place of a lone half, so that any Python str can be encoded.
    """
    if not isinstance(text, str):
        hint = "; decode it first, as in data.decode('utf-8')" if isinstance(text, bytes | bytearray) else ""
        raise NotTextError(f"a text to encode must be a str, not {type(text).__name__}{hint}")
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
    """The bytes in the order of their GPT-2 ids: visible ones first (`!` is 0), moved ones after (`Ġ` is 220)."""
    return tuple(sorted(range(256), key=lambda byte: byte_to_char()[byte]))


def to_visible(data: bytes) -> str:
    """Write bytes in the visible alphabet: b" the" -> "Ġthe"."""
    table = byte_to_char()
    return "".join([table[byte] for byte in data])


def from_visible(token: Iterable[str]) -> bytes:
    """Undo `to_visible`; KeyError for a character outside the alphabet."""
    table = char_to_byte()
    return bytes([table[char] for char in token])
