"""Words, the byte alphabet, and the tables of Unicode behind them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.errors import UserError
from glassgpt.tokenizer.categories import LETTERS, NUMBERS, WHITE_SPACE
from glassgpt.tokenizer.pre_tokenizer import (
    bytes_in_id_order,
    bytes_to_unicode,
    from_visible,
    last_word_end,
    replace_surrogates,
    split_into_pieces,
    split_words,
    to_visible,
    white_space_characters,
)

from .conftest import random_texts


def test_the_byte_alphabet() -> None:
    table = bytes_to_unicode()
    assert len(set(table)) == 256
    assert not any(char.isspace() or unicodedata.category(char) == "Cc" for char in table)
    assert (table[ord("A")], table[ord(" ")], table[ord("\n")], table[0xAD]) == ("A", "Ġ", "Ċ", "Ń")
    assert (bytes_in_id_order().index(ord("!")), bytes_in_id_order().index(ord(" "))) == (0, 220)


@given(st.binary())
def test_the_byte_alphabet_loses_nothing(data: bytes) -> None:
    assert from_visible(to_visible(data)) == data


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello world", ["Hello", " world"]),
        ("they're we'll I'd", ["they", "'re", " we", "'ll", " I", "'d"]),
        ("IT'S", ["IT", "'", "S"]),  # contractions are found in small letters only
        ("a  b   c", ["a", " ", " b", "  ", " c"]),
        ("a \n b", ["a", " \n", " b"]),
        ("end  ", ["end", "  "]),
        ("x=1234;", ["x", "=", "1234", ";"]),
        ("naïve café", ["naïve", " café"]),
        ("ab日本語12x²", ["ab日本語", "12", "x", "²"]),
        ("e\u0301a", ["e", "\u0301", "a"]),  # a combining accent is not a letter
        ("a\x1cb", ["a", "\x1c", "b"]),  # white space for Python, not for Unicode
        ("a\u3000b", ["a", "\u3000", "b"]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def _codes(ranges: str) -> set[int]:
    codes: set[int] = set()
    for part in ranges.split():
        start, _, stop = part.partition("-")
        codes.update(range(int(start, 16), int(stop or start, 16) + 1))
    return codes


def test_the_tables_agree_with_pythons_for_every_character_that_python_knows() -> None:
    letters, numbers, spaces = _codes(LETTERS), _codes(NUMBERS), _codes(WHITE_SPACE)
    # A newer Python may know characters newer than the tables; in their version, 17, there are this many.
    assert (len(letters), len(numbers), len(spaces)) == (141_028, 1_911, 25)
    newer = unicodedata.unidata_version.split(".")[0] > "17"
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category != "Cn" and not newer:
            assert (code in letters, code in numbers) == (category[0] == "L", category[0] == "N"), hex(code)
    assert {chr(code) for code in spaces} == white_space_characters()
    assert {chr(code) for code in range(0x110000) if chr(code).isspace()} - white_space_characters() == set(
        "\x1c\x1d\x1e\x1f"
    )


def test_a_text_may_be_split_at_word_ends() -> None:
    found = 0
    for text in random_texts(2_000, seed=4):
        assert "".join(split_words(text)) == text
        for limit in range(1, len(text)):
            cut = last_word_end(text, limit)
            if cut is not None:
                found += 1
                assert 0 < cut <= limit
                assert split_words(text[:cut]) + split_words(text[cut:]) == split_words(text)
    assert found > 10_000


@pytest.mark.parametrize("size", [1, 3, 10])
def test_pieces_have_the_words_of_the_whole(size: int) -> None:
    for text in [*random_texts(1_000, seed=11), "a" * 50 + " b", " " * 50, "a b " * 20]:
        pieces = list(split_into_pieces(text, size))
        assert [word for piece in pieces for word in split_words(piece)] == split_words(text)
    assert len(list(split_into_pieces("a b " * 20, size))) > 5


def test_half_characters_become_the_replacement_character() -> None:
    assert replace_surrogates("a\ud800b") == "a\ufffdb"
    assert replace_surrogates("\ud83d\ude42") == "🙂"  # two halves that belong together
    assert replace_surrogates("🙂") == "🙂"


@pytest.mark.parametrize("value", [b"bytes", 3, None, ["a"]])
def test_only_text_is_text(value: object) -> None:
    with pytest.raises(UserError, match="must be a str"):
        replace_surrogates(value)
    with pytest.raises(TypeError):
        replace_surrogates(value)
