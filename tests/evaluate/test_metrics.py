"""Figures, standard errors, the bootstrap, and what the corpora's tokens become."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glassgpt.evaluate.metrics import ACCURACY, BITS, PERPLEXITY, MetricResult, paired_bootstrap
from glassgpt.evaluate.published import PAPER, published
from glassgpt.evaluate.suites import detokenize
from glassgpt.evaluate.suites.perplexity import count_words_and_newlines, join_as_hub_rows, split_articles
from tests.evaluate import texts


def measure(kind, totals, weights=None) -> MetricResult:
    totals = np.array(totals, float)
    return MetricResult(
        "m", "p", kind, totals, np.ones(len(totals)) if weights is None else np.array(weights, float)
    )


def test_the_error_of_an_accuracy_is_the_sample_deviation_over_root_n() -> None:
    responses = [1, 0, 0, 1, 1, 0, 1, 1]
    found = measure(ACCURACY, responses)
    assert found.value == 5 / 8
    assert found.stderr == pytest.approx(np.std(responses, ddof=1) / math.sqrt(8))
    assert found.n == 8


def test_the_error_of_a_perplexity_is_what_resampling_finds() -> None:
    draw = np.random.default_rng(0)
    words = draw.integers(5, 60, size=400)
    nats = words * 3 + draw.normal(0, 10, size=400)
    found = measure(PERPLEXITY, nats, words)
    again = [draw.integers(400, size=400) for _ in range(2000)]
    resampled = np.std([math.exp(nats[i].sum() / words[i].sum()) for i in again])
    # The deviation of 2000 resamples is itself known to about 1/sqrt(2 * 2000), 1.6%.
    assert found.stderr == pytest.approx(resampled, rel=0.08)
    assert found.n == words.sum()
    bits = measure(BITS, nats, words)
    assert bits.value == pytest.approx(math.log2(found.value))


def test_a_single_unit_has_no_error() -> None:
    assert measure(PERPLEXITY, [3.0]).stderr is None


def test_the_paired_bootstrap_sees_what_two_errors_hide() -> None:
    draw = np.random.default_rng(1)
    hard = draw.normal(3, 2, size=300)
    a, b = measure(PERPLEXITY, hard), measure(PERPLEXITY, hard + 0.05 + draw.normal(0, 0.05, size=300))
    gap = paired_bootstrap(a, b)
    assert gap.is_significant
    assert gap.low < gap.value < gap.high
    assert gap.value < a.stderr  # although each alone is known less well than they differ
    assert not paired_bootstrap(a, measure(PERPLEXITY, hard + draw.normal(0, 0.05, size=300))).is_significant


def test_published_figures_stand_beside_their_own_rule_only() -> None:
    assert published("wikitext-2.token_perplexity", "per token of the model, stride 1024") == (
        29.94,
        None,
        19.44,
        None,
    )
    assert published("wikitext-2.token_perplexity", "per token of the model, stride 256") is None
    assert published("lambada.accuracy", "last word, without stop words") == PAPER["lambada.accuracy"]


# Undoing tokens.

CASES = {
    detokenize.wikitext: (
        (' It " never fell " ( so they say ) ; 3 @.@ 5 km \n', 'It "never fell" (so they say); 3.5 km\n'),
        (" = = Use = = \n", "== Use ==\n"),
        (" the readers ' 1 @,@ 204 well @-@ known , I 'll ! \n", "the readers' 1,204 well-known, I'll!\n"),
        (' He said , " Go . " \n', 'He said, "Go."\n'),
    ),
    detokenize.ptb: (
        (" it does n't cost $ N million or N % \n", "it doesn't cost $N million or N%\n"),
        (" mr. <unk> 's plan \n", "mr. <unk>'s plan\n"),
    ),
    detokenize.one_billion: (('" We will n\'t pay , " he said .\n', '"We willn\'t pay," he said.\n'),),
    detokenize.childrens_books: (
        ("`` The cow -LRB- hers -RRB- is n't , '' he said .", '"The cow (hers) isn\'t," he said.'),
    ),
}


@pytest.mark.parametrize("undo", CASES, ids=lambda undo: undo.__name__)
def test_detokenizers(undo) -> None:
    for given, wanted in CASES[undo]:
        assert undo(given) == wanted


@pytest.mark.parametrize("undo", [detokenize.wikitext, detokenize.ptb, detokenize.one_billion])
def test_nothing_but_blanks_and_marks_is_lost(undo) -> None:
    def letters(text: str) -> str:
        return "".join(text.replace(" @", "").replace("@ ", "").split())

    for name in ("wikitext-2.test.tokens", "ptb.test.txt", "news.en.heldout-00000-of-00050"):
        text = texts.FILES[name]
        assert letters(undo(text)) == letters(text)
        assert undo(text).count("\n") == text.count("\n")


def test_nothing_is_lost_of_the_real_file(shared) -> None:
    from glassgpt.evaluate.suites import datasets

    text, _ = datasets.load(datasets.WIKITEXT_103, shared / "data" / "eval")
    clean = detokenize.wikitext(text)
    assert "".join(clean.split()) == "".join(text.replace(" @", "").replace("@ ", "").split())


def test_the_counts_of_wikitext_2_are_the_known_ones(shared) -> None:
    from glassgpt.evaluate.suites import datasets
    from glassgpt.tokenizer import Tokenizer

    text, _ = datasets.load(datasets.WIKITEXT_2_RAW, shared / "data" / "eval")
    assert count_words_and_newlines(text) == 245_569
    assert len(split_articles(text)) == 62
    gpt2 = Tokenizer.load(shared / "gpt2-bpe")
    assert len(gpt2.encode(join_as_hub_rows(text))) == 287_644


def test_the_rules_of_the_harness_are_its_own(shared) -> None:
    theirs = pytest.importorskip("lm_eval.tasks.wikitext.preprocess_wikitext")
    from glassgpt.evaluate.suites import datasets

    text, _ = datasets.load(datasets.WIKITEXT_2_RAW, shared / "data" / "eval")
    for page in split_articles(text):
        assert detokenize.harness_wikitext(page) == theirs.wikitext_detokenizer({"page": page})
