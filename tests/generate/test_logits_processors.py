"""Penalties, bias, words and n-grams against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from glassgpt.errors import SettingError, UserError
from glassgpt.generate.sampling.logits_processors import LogitsProcessor, WordBiases, collect_edits
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.sampler import apply_edits
from tests.generate.tiny import VOCAB, LetterTokenizer

TOKENIZER = LetterTokenizer()


def after(logits, settings, prompt, generated):
    """The logits that the sampler sees after this text."""
    processor = LogitsProcessor(settings, prompt, WordBiases(settings, TOKENIZER), len(logits))
    for token in generated:
        processor.push(token)
    edits = collect_edits([processor], lambda values: values)
    logits = np.array(logits, np.float32)[None]
    return (logits if edits is None else apply_edits(logits, edits))[0]


ids = st.lists(st.integers(0, 7), max_size=12)
number = st.none() | st.floats(-2, 2).map(lambda x: round(x, 2))


biases = st.dictionaries(st.integers(0, 7), st.floats(-3, 3))


@given(ids, ids, number, number, st.none() | st.sampled_from([0.5, 1.0, 1.3]), biases)
@hypothesis_settings(max_examples=200, deadline=None)
def test_penalties_and_bias_add_up(prompt, generated, presence, frequency, repetition, bias):
    logits = np.linspace(-2, 2, 8)
    settings = SamplingParams(
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition, logit_bias=bias
    )
    expected = []
    for token, value in enumerate(logits):
        if repetition is not None and token in prompt + generated:  # CTRL: prompt and text
            value = value / repetition if value > 0 else value * repetition
        if presence is not None and token in generated:  # the text alone
            value -= presence
        if frequency is not None:
            value -= frequency * generated.count(token)
        expected.append(value + bias.get(token, 0.0))
    np.testing.assert_allclose(after(logits, settings, prompt, generated), expected, rtol=1e-5, atol=1e-5)


@given(ids, ids, st.integers(1, 4))
@hypothesis_settings(max_examples=200, deadline=None)
def test_no_ngram_comes_twice(prompt, generated, n):
    text = prompt + generated
    ngrams = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
    banned = {t for t in range(8) if len(text) >= n - 1 and (*text[len(text) - n + 1 :], t) in ngrams}
    result = after([0.0] * 8, SamplingParams(no_repeat_ngram=n), prompt, generated)
    assert {t for t in range(8) if result[t] == -math.inf} == banned


class TestWordBiases:
    def test_a_word_of_one_token_is_banned_outright(self):
        result = after([0.0] * VOCAB, SamplingParams(banned_words="a"), [], [])
        assert result[TOKENIZER.encode("a")[0]] == -math.inf
        assert np.isfinite(result).sum() == VOCAB - 1

    def test_a_longer_word_is_banned_at_its_last_token(self):
        settings = SamplingParams(banned_words=["cat"])
        c, a, t = TOKENIZER.encode("cat")
        assert np.isfinite(after([0.0] * VOCAB, settings, [], [])).all()
        assert np.isfinite(after([0.0] * VOCAB, settings, [], [c])).all()
        assert np.isfinite(after([0.0] * VOCAB, settings, [], [c, c, t])).all()
        banned = after([0.0] * VOCAB, settings, [], [c, a])
        assert banned[t] == -math.inf
        assert np.isfinite(banned).sum() == VOCAB - 1
        assert after([0.0] * VOCAB, settings, [c], [a])[t] == -math.inf  # begun in the prompt

    def test_a_required_word_is_made_likelier_token_by_token(self):
        settings = SamplingParams(required_words=["cat"], required_bias=4.0)
        space, c, a, t = TOKENIZER.encode(" cat")
        start = after([0.0] * VOCAB, settings, [], [])
        assert {i for i in range(VOCAB) if start[i]} == {space, c}
        assert after([0.0] * VOCAB, settings, [], [c])[a] == 4.0
        assert after([0.0] * VOCAB, settings, [], [c, a])[t] >= 4.0

    def test_a_ban_wins_over_a_wish(self):
        settings = SamplingParams(required_words=["a"], banned_words=["a"])
        assert after([0.0] * VOCAB, settings, [], [])[TOKENIZER.encode("a")[0]] == -math.inf

    def test_words_need_a_tokenizer(self):
        with pytest.raises(UserError, match="tokenizer"):
            WordBiases(SamplingParams(banned_words="a"), None)


def test_a_bias_for_a_token_that_does_not_exist_is_an_error():
    with pytest.raises(SettingError, match=r"token 99.*ends at 7"):
        LogitsProcessor(SamplingParams(logit_bias={99: 1.0}), [], WordBiases(SamplingParams(), None), 8)


def test_only_what_depends_on_the_text_needs_the_host():
    def fixed(**given):
        settings = SamplingParams(**given)
        return LogitsProcessor(settings, [1], WordBiases(settings, TOKENIZER), VOCAB).fixed

    assert fixed()
    assert fixed(logit_bias={1: 2.0}, banned_words=["a"][:0])
    assert not fixed(banned_words=["cat"])
    assert not fixed(repetition_penalty=1.2)
    assert not fixed(no_repeat_ngram=2)


def test_rows_with_fewer_changes_are_filled_up_harmlessly():
    settings = [
        SamplingParams(logit_bias={1: 1.0, 2: 2.0, 5: -1.0}),
        SamplingParams(logit_bias={3: 9.0}),
        SamplingParams(),
    ]
    edits = collect_edits(
        [LogitsProcessor(s, [], WordBiases(s, None), 8) for s in settings], lambda values: values
    )
    result = apply_edits(np.zeros((3, 8), np.float32), edits)
    np.testing.assert_array_equal(result, [[0, 1, 2, 0, 0, -1, 0, 0], [0, 0, 0, 9, 0, 0, 0, 0], [0] * 8])
