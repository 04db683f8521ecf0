"""Stop strings and half characters, cut into pieces in every way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from glassgpt.generate.detokenizer import Detokenizer
from tests.generate.tiny import LetterTokenizer


class Pieces:
    """A tokenizer whose ids stand for given pieces of text."""

    eot_id = None

    def __init__(self, pieces):
        self.pieces = pieces

    def stream(self):
        return self

    def push(self, token):
        return self.pieces[token]

    def finish(self):
        return ""


def first_stop(text, stops):
    """The text before the stop string that is complete first, letter by letter."""
    for end in range(len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - max(map(len, matches))], True
    return text, False


letters = st.text("abc", max_size=6)


@given(st.lists(letters, max_size=12), st.lists(letters.filter(bool), max_size=3))
@hypothesis_settings(max_examples=500, deadline=None)
def test_stops_do_not_depend_on_how_the_text_is_cut(pieces, stops):
    out = Detokenizer(Pieces(pieces), stops)
    given, stopped = "", False
    for i in range(len(pieces)):
        piece, stopped = out.push(i)
        given += piece
        # Nothing is given out that a stop string might yet take back.
        assert first_stop("".join(pieces), stops)[0].startswith(given)
        if stopped:
            break
    if not stopped:
        given += out.finish()
    assert (given, stopped) == first_stop("".join(pieces), stops)
    assert out.text == given


def test_text_is_held_back_only_while_it_may_be_a_stop():
    out = Detokenizer(Pieces(["ab", "c", "ab", "abd"]), ["abd"])
    assert [out.push(i) for i in range(4)] == [("", False), ("abc", False), ("", False), ("ab", True)]


def test_half_characters_wait():
    tokenizer = LetterTokenizer()
    out = Detokenizer(tokenizer, ())
    assert [out.push(token)[0] for token in tokenizer.encode("é€a")] == ["", "é", "", "", "€", "a"]
    out.push(tokenizer.encode("€")[0])
    assert out.finish() == "\N{REPLACEMENT CHARACTER}"


def test_without_a_tokenizer_the_text_is_the_ids():
    out = Detokenizer(None, ())
    assert out.push(3) == (" 3", False)
    assert out.push(14) == (" 14", False)
    assert out.finish() == ""
    assert out.text == " 3 14"
