"""Stop strings and half characters, cut into pieces in every way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from glassgpt.errors import SettingError
from glassgpt.generate.detokenizer import Detokenizer
from glassgpt.generate.sampling.params import SamplingParams
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
    out = Detokenizer(Pieces(pieces), SamplingParams(stop=stops))
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
    out = Detokenizer(Pieces(["ab", "c", "ab", "abd"]), SamplingParams(stop=["abd"]))
    assert [out.push(i) for i in range(4)] == [("", False), ("abc", False), ("", False), ("ab", True)]


def test_half_characters_wait():
    tokenizer = LetterTokenizer()
    out = Detokenizer(tokenizer, SamplingParams())
    assert [out.push(token)[0] for token in tokenizer.encode("é€a")] == ["", "é", "", "", "€", "a"]
    out.push(tokenizer.encode("€")[0])
    assert out.finish() == "\N{REPLACEMENT CHARACTER}"


def test_without_a_tokenizer_the_text_is_the_ids():
    out = Detokenizer(None, SamplingParams())
    assert out.push(3) == (" 3", False)
    assert out.push(14) == (" 14", False)
    assert out.finish() == ""
    assert out.text == " 3 14"


def written(pieces: list[str], **settings) -> tuple[str, int]:
    """The text of a detokenizer, and how many pieces it took."""
    out = Detokenizer(Pieces(pieces), SamplingParams(**settings))
    text = ""
    stopped, count = False, 0
    while count < len(pieces) and not stopped:
        piece, stopped = out.push(count)
        text += piece
        count += 1
    text += "" if stopped else out.finish()
    assert text == out.text
    return text, count


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"stop": ["cd"]}, "ab"),
        ({"stop": ["cd"], "stop_keep": True}, "abcd"),
        ({"until_suffix": ["cd"]}, "abcd"),
        ({"stop": ["ef"], "until_suffix": ["bcd"]}, "abcd"),
        ({"stop": ["bc"], "until_suffix": ["cde"]}, "a"),
        ({"stop": ["x"], "until_suffix": "y"}, "abcdef"),
    ],
)
def test_what_a_stop_leaves(settings: dict, expected: str) -> None:
    for cut in range(1, 6):
        text = "abcdef"
        assert written([text[:cut], text[cut:]], **settings)[0] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He ran. She saw. It", "He ran."),
        ('"Go!" he said. Then', '"Go!" he said.'),
        ("She said: “Go.” Then he went. No", "She said: “Go.”"),
        ("Mr. Smith and J. S. Bach met Dr. Who. They", "Mr. Smith and J. S. Bach met Dr. Who."),
        ("It cost 3.50 francs... and more. The", "It cost 3.50 francs... and more."),
        ("Wait... What? Yes. No", "Wait..."),
        ("No end here. and on", "No end here. and on"),
        ("One.\n\nTwo. Three", "One."),
        ("Été. Âge", "Été."),
        ("The end.", "The end."),
    ],
)
def test_a_text_of_whole_sentences(text: str, expected: str) -> None:
    for pieces in ([text], list(text), [text[:7], text[7:]]):
        assert written(pieces, stop_at="sentence")[0] == expected


def test_a_sentence_counts_after_the_least_tokens() -> None:
    assert (
        written(["He. We", ". They", ". It", ". All"], stop_at="sentence", min_new_tokens=2)[0]
        == "He. We. They."
    )
    assert written(["one", " two\nth", "ree"], stop_at="line") == ("one two", 2)


def test_text_is_held_back_only_while_it_may_be_a_sentence() -> None:
    out = Detokenizer(
        Pieces(["He ran", ".", " ", "then", " on. ", "The"]), SamplingParams(stop_at="sentence")
    )
    assert [out.push(token) for token in range(6)] == [
        ("He ran", False), ("", False), ("", False), (". then", False), (" on", False), (".", True),
    ]  # fmt: skip


def test_a_loop_is_ended() -> None:
    import glassgpt
    from tests.conftest import SHIPPED

    gpt = glassgpt.load(SHIPPED)
    always = {"max_new_tokens": 60, "temperature": 0, "logit_bias": {7: 1000}}
    text = gpt.generate("A", stop_on_repeat=4, **always)
    assert (len(text.tokens), text.finish_reason) == (5, "stop")  # 4, and the next 4 of them again
    assert len(gpt.generate("A", stop_on_repeat=4, min_new_tokens=9, **always).tokens) == 9
    assert len(gpt.generate("A", **always).tokens) == 60
    assert len(gpt.generate("A", stop_on_repeat=40, **always).tokens) == 41
    stream = gpt.stream("A", stop_on_repeat=4, **always)
    assert "".join(stream) == text.text
    with pytest.raises(SettingError, match="stop_on_repeat is 1"):
        gpt.generate("A", stop_on_repeat=1)
    with pytest.raises(SettingError, match="sentence, line"):
        gpt.generate("A", stop_at="word")
    with pytest.raises(SettingError, match="no meaning with beams"):
        gpt.generate("A", stop_on_repeat=4, beams=2)
    sentence = gpt.generate("The old house", seed=1, max_new_tokens=80, stop_at="sentence")
    assert sentence.text.rstrip()[-1] in '.!?"”'
    assert gpt.decode(sentence.tokens).startswith(sentence.text)
