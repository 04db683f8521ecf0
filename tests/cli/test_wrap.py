"""Streamed text is wrapped between words, wherever the pieces end."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from glassgpt.cli.wrap import WordWrap

TEXT = st.lists(st.text(alphabet="ab ,é\n", max_size=12), max_size=30).map("".join)


def wrapped(pieces, width):
    wrap = WordWrap(width)
    return "".join(wrap.push(piece) for piece in pieces) + wrap.flush()


def test_example():
    pieces = ["A rob", "ot must", " obey", " the orders", ".\n\nNo", " more"]
    assert wrapped(pieces, 16) == "A robot must\nobey the orders.\n\nNo more"


@given(TEXT, st.lists(st.integers(0, 200)), st.integers(12, 40))
def test_words_and_lines_are_kept_however_the_text_is_split(text, cuts, width):
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    out = wrapped(pieces, width)
    assert out.split() == text.split()
    if max(map(len, text.split()), default=0) <= width // 2:
        assert max(map(len, out.split("\n"))) <= width
    for line, own in zip(text.split("\n"), wrapped([text], 10_000).split("\n"), strict=True):
        assert own == line.rstrip(" ") or own == line  # a line that fits is unchanged


def test_a_very_long_word_is_not_held_back():
    wrap = WordWrap(10)
    assert sum(len(wrap.push("x" * 7)) for _ in range(10)) >= 60
    assert wrapped(["日本語" * 5], 10) == "日本語" * 5
    assert wrapped(["ab 日本 語日本"], 10) == "ab 日本\n語日本"
