"""Metrics of generated text.

With references: `translation_scores` (sacrebleu) and `rouge` (rouge-score), as papers report them. For open
generation: `distinct` and `repetition`, which measure how much a model repeats itself between texts and
within one. Fractions are between 0 and 1, BLEU, chrF and ROUGE between 0 and 100.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from glassgpt.errors import SettingError, UserError

ROUGE_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def translation_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """BLEU and chrF of translations, cased and detokenized, with sacrebleu's signatures, which say exactly
    how they were computed. chrF, of character n-grams, forgives another ending of a word."""
    _same_length(texts, references, "references")
    try:
        import sacrebleu
    except ModuleNotFoundError:
        raise _missing("BLEU", "sacrebleu") from None
    metrics: Any = sacrebleu.metrics
    found: dict[str, float | str] = {}
    for name, metric in (("bleu", metrics.BLEU()), ("chrf", metrics.CHRF())):
        found[name] = float(metric.corpus_score(list(texts), [list(references)]).score)
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def rouge(
    texts: Sequence[str], references: Sequence[str], kinds: Sequence[str] = ROUGE_KINDS
) -> dict[str, float]:
    """The mean F-measure of each kind, with stemming; `rougeLsum` treats each line as a sentence."""
    _same_length(texts, references, "references")
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError:
        raise _missing("ROUGE", "rouge-score") from None
    scorer = RougeScorer(list(kinds), use_stemmer=True)
    found = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {kind: 100 * sum(one[kind].fmeasure for one in found) / len(found) for kind in kinds}


# Open generation. Texts are split at white space; lists of token ids work too.

Text = str | Sequence[Hashable]


def distinct(texts: Sequence[Text], n: int) -> float:
    """Distinct n-grams of all texts, as a fraction of all their n-grams (Li et al., 2016)."""
    every = [gram for text in texts for gram in _ngrams(text, n)]
    return len(set(every)) / len(every) if every else 0.0


def repetition(text: Text, n: int) -> float:
    """The fraction of a text's n-grams that are repeats ("seq-rep-n" of Welleck et al., 2020)."""
    every = _ngrams(text, n)
    return 1 - len(set(every)) / len(every) if every else 0.0


def _ngrams(text: Text, n: int) -> list[tuple[Hashable, ...]]:
    if n < 1:
        raise SettingError(f"n is {n}; n-grams have at least 1 word.")
    words = text.split() if isinstance(text, str) else list(text)
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def _same_length(texts: Sequence[Any], others: Sequence[Any], what: str) -> None:
    if len(texts) != len(others) or not texts:
        raise SettingError(f"there are {len(texts)} texts and {len(others)} {what}. Give one for each text.")


def _missing(what: str, package: str) -> UserError:
    return UserError(f"{what} needs the package {package}. Install it with: pip install 'glassgpt[eval]'")
