"""Metrics of generated texts, beside values worked out by hand."""

from __future__ import annotations

import math
import sys

import pytest

from glassgpt.errors import SettingError, UserError
from glassgpt.evaluate.generated import distinct, repetition, rouge, translation_scores

ROSES = "the cat sat on the mat"  # 6 words
OTHER = "the cat sat on a mat"


def test_bleu_is_the_mean_of_four_precisions() -> None:
    # 1- to 4-grams of OTHER that are in ROSES: 5 of 6 (the, cat, sat, on, mat), 3 of 5, 2 of 4, 1 of 3.
    by_hand = 100 * math.exp(sum(math.log(p) for p in (5 / 6, 3 / 5, 2 / 4, 1 / 3)) / 4)
    assert translation_scores([OTHER], [ROSES])["bleu"] == pytest.approx(by_hand)
    same = translation_scores([ROSES], [ROSES])
    assert same["bleu"] == pytest.approx(100)
    assert same["chrf"] == pytest.approx(100)


def test_bleu_punishes_what_is_short_and_says_how_it_was_computed() -> None:
    # 4 of 4, 3 of 3, 2 of 2, 1 of 1; the reference has 6 words, the text 4.
    short = translation_scores(["the cat sat on"], [ROSES])
    assert short["bleu"] == pytest.approx(100 * math.exp(1 - 6 / 4))
    assert "tok:13a" in str(short["bleu_signature"])


def test_rouge_counts_words_pairs_and_the_longest_common_sequence() -> None:
    found = rouge([OTHER], [ROSES])
    assert found["rouge1"] == pytest.approx(100 * 5 / 6)  # both have 6 words, 5 in common
    assert found["rouge2"] == pytest.approx(100 * 3 / 5)  # the cat, cat sat, sat on
    assert found["rougeL"] == pytest.approx(100 * 5 / 6)  # the cat sat on mat
    two = rouge([OTHER, ROSES], [ROSES, ROSES], kinds=["rouge1"])
    assert two == {"rouge1": pytest.approx(100 * (5 / 6 + 1) / 2)}


def test_distinct_and_repetition() -> None:
    assert distinct(["a b a b"], 1) == 2 / 4
    assert distinct(["a b a b"], 2) == 2 / 3  # ab, ba, ab
    assert distinct(["a b", "a b"], 2) == 1 / 2  # of all texts together
    assert repetition("a b a b", 2) == pytest.approx(1 / 3)
    assert repetition([7, 8, 9], 2) == 0  # token ids
    assert repetition("a", 2) == 0 == distinct(["a", ""], 2)  # too short to have any


def test_mistakes_are_one_line_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for call, message in (
        (lambda: translation_scores(["a"], []), "1 texts and 0 references"),
        (lambda: rouge([], []), "0 texts"),
        (lambda: distinct(["a"], 0), "n is 0"),
    ):
        with pytest.raises(SettingError, match=message):
            call()
    for package, call in (
        ("sacrebleu", lambda: translation_scores(["a"], ["a"])),
        ("rouge_score.rouge_scorer", lambda: rouge(["a"], ["a"])),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=r"glassgpt\[eval\]"):
            call()
