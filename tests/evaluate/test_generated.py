"""Metrics of generated texts, compared with values worked out by hand."""

from __future__ import annotations

import math
import sys

import pytest

from glassgpt.errors import SettingError, UserError
from glassgpt.evaluate.generated import bleu, distinct, exact_match, f1, repetition, rouge, self_bleu

ROSES = "the cat sat on the mat"  # 6 words
OTHER = "the cat sat on a mat"


def test_bleu_is_the_mean_of_four_precisions() -> None:
    # 1- to 4-grams of OTHER that are in ROSES: 5 of 6 (the, cat, sat, on, mat), 3 of 5, 2 of 4, 1 of 3.
    by_hand = 100 * math.exp(sum(math.log(p) for p in (5 / 6, 3 / 5, 2 / 4, 1 / 3)) / 4)
    assert bleu([OTHER], [[ROSES]]) == pytest.approx(by_hand)
    assert bleu([ROSES], [[ROSES]]) == pytest.approx(100)


def test_bleu_punishes_what_is_short_and_takes_any_reference() -> None:
    # 4 of 4, 3 of 3, 2 of 2, 1 of 1; the reference has 6 words, the text 4.
    assert bleu(["the cat sat on"], [[ROSES]]) == pytest.approx(100 * math.exp(1 - 6 / 4))
    assert bleu([OTHER, ROSES], [[ROSES, OTHER], [ROSES]]) == pytest.approx(100)  # one has two, one has one


def test_rouge_counts_words_pairs_and_the_longest_common_sequence() -> None:
    found = rouge([OTHER], [ROSES])
    assert found["rouge1"] == pytest.approx(100 * 5 / 6)  # both have 6 words, 5 in common
    assert found["rouge2"] == pytest.approx(100 * 3 / 5)  # the cat, cat sat, sat on
    assert found["rougeL"] == pytest.approx(100 * 5 / 6)  # the cat sat on mat
    two = rouge([OTHER, ROSES], [ROSES, ROSES], kinds=["rouge1"])
    assert two == {"rouge1": pytest.approx(100 * (5 / 6 + 1) / 2)}


def test_answers_are_compared_without_articles_case_and_punctuation() -> None:
    assert exact_match("The  Eiffel-Tower!", ["an eiffeltower"]) == 1
    assert exact_match("Another tower", ["tower"]) == 0  # "another" does not begin with an article
    assert exact_match("the", ["a"]) == 1  # nothing is left of both
    assert f1("the", ["tower"]) == 0


def test_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    # "white cat sat" and "white cat": 2 of 3, 2 of 2.
    assert f1("The white cat sat.", ["a white cat"]) == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert f1("no no no", ["no no"]) == pytest.approx(2 * 2 / 5)  # a word counts as often as both have it


def test_of_several_answers_each_is_left_out_in_turn() -> None:
    # Left out "yes": max(0, 0) = 0; left out one of the others: 1, 1.
    assert exact_match("yes", ["yes", "no", "maybe"]) == pytest.approx(2 / 3)
    assert exact_match("yes", ["yes", "Yes."]) == 1
    # Scores 1, 0.5 (2 * 1 / 4) and 0: the best without the first is 0.5, else 1.
    assert f1("red", ["red", "red or blue", "green"]) == pytest.approx((0.5 + 1 + 1) / 3)


def test_distinct_and_repetition() -> None:
    assert distinct(["a b a b"], 1) == 2 / 4
    assert distinct(["a b a b"], 2) == 2 / 3  # ab, ba, ab
    assert distinct(["a b", "a b"], 2) == 1 / 2  # of all texts together
    assert repetition("a b a b", 2) == pytest.approx(1 / 3)
    assert repetition([7, 8, 9], 2) == 0  # token ids
    assert repetition("a", 2) == 0 == distinct(["a", ""], 2)  # too short to have any


def test_self_bleu_is_high_for_copies_and_low_for_strangers() -> None:
    assert self_bleu([ROSES, ROSES, ROSES]) == pytest.approx(100)
    # Each is scored against the other; both have 6 words, and the precisions are the same both ways.
    assert self_bleu([OTHER, ROSES]) == pytest.approx(bleu([OTHER], [[ROSES]]))
    assert self_bleu([ROSES, "dogs bark loudly every single night"]) < 10


def test_mistakes_are_one_line_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for call, message in (
        (lambda: bleu(["a"], []), "1 texts and 0 references"),
        (lambda: bleu(["a"], [[]]), "no reference"),
        (lambda: rouge([], []), "0 texts"),
        (lambda: self_bleu(["a"]), "two or more"),
        (lambda: distinct(["a"], 0), "n is 0"),
        (lambda: f1("a", []), "no reference answer"),
    ):
        with pytest.raises(SettingError, match=message):
            call()
    for package, call in (
        ("sacrebleu", lambda: bleu(["a"], [["a"]])),
        ("rouge_score.rouge_scorer", lambda: rouge(["a"], ["a"])),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=r"glassgpt\[eval\]"):
            call()
