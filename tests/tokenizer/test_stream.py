"""Streaming: ids one at a time, text in whole characters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.errors import SettingError
from glassgpt.tokenizer import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer

from .conftest import random_texts


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


def test_text_comes_in_whole_characters(trained: BPETokenizer) -> None:
    for tokenizer in (trained, ByteTokenizer()):
        for text in random_texts(500, seed=9):
            got = pieces(tokenizer, tokenizer.encode(text))
            assert "".join(got) == text
            assert got[-1] == ""  # nothing was held back longer than needed
            if "\ufffd" not in text:
                assert not any("\ufffd" in piece for piece in got)


def test_a_character_appears_with_its_last_byte() -> None:
    assert pieces(ByteTokenizer(), list("é🙂".encode())) == ["", "é", "", "", "", "🙂", ""]


def test_an_unfinished_character_is_flushed_as_a_replacement() -> None:
    stream = ByteTokenizer().stream()
    assert [stream.push(byte) for byte in "🙂".encode()[:3]] == ["", "", ""]
    assert stream.finish() == "\ufffd"
    assert stream.push(ord("a")) == "a"  # a finished stream starts anew
    assert stream.finish() == ""


@settings(deadline=None)
@given(data=st.data())
def test_any_ids_give_what_decode_gives(trained: BPETokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, trained.vocab_size - 1), max_size=60))
    assert "".join(pieces(trained, ids)) == trained.decode(ids)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 256), max_size=60))
def test_any_bytes_give_what_decode_gives(ids: list[int]) -> None:
    assert "".join(pieces(ByteTokenizer(), ids)) == ByteTokenizer().decode(ids)


def test_a_wrong_id_is_named_and_does_no_harm() -> None:
    stream = CharTokenizer("ab").stream()
    assert stream.push(0) == "a"
    with pytest.raises(SettingError, match="77"):
        stream.push(77)
    assert stream.push(1) == "b"
