"""Metrics of generated text.

With references: `bleu` (sacrebleu) and `rouge` (rouge-score), as papers report them. With short answers:
`exact_match` and `f1` by CoQA's rules. For open generation: `distinct`, `repetition` and `self_bleu`, which
measure how much a model repeats itself within a text and between texts. Fractions are between 0 and 1, BLEU
and ROUGE between 0 and 100.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from glassgpt.errors import SettingError, UserError

ROUGE_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU, with one or more references per text; sacrebleu's default tokenizer ("13a")."""
    _same_length(texts, references, "references")
    if any(not golds or not all(golds) for golds in references):
        raise SettingError("a text has no reference, or an empty one. Give each at least one text.")
    sacrebleu = _sacrebleu()
    most = max(map(len, references))
    # sacrebleu takes the first reference of every text, then the second of those that have one, and so on.
    columns = [[golds[i] if i < len(golds) else None for golds in references] for i in range(most)]
    return float(sacrebleu.corpus_bleu(list(texts), columns).score)


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
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {kind: 100 * sum(score[kind].fmeasure for score in scores) / len(scores) for kind in kinds}


# Short answers, by the rules of CoQA's official script.


def normalize_answer(answer: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles."""
    kept = "".join(c for c in answer.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def exact_match(answer: str, golds: Sequence[str]) -> float:
    return _as_coqa(_same_words, answer, golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """Word overlap: the harmonic mean of precision and recall."""
    return _as_coqa(_overlap, answer, golds)


def _as_coqa(score: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
    """The best score over the references. With several, each is left out in turn and the results averaged,
    as a human answer is scored against the others only."""
    if not golds:
        raise SettingError("there is no reference answer. Give at least one.")
    if len(golds) == 1:
        return score(answer, golds[0])
    points = [score(answer, gold) for gold in golds]
    return sum(max(points[:i] + points[i + 1 :]) for i in range(len(points))) / len(points)


def _same_words(answer: str, gold: str) -> float:
    return float(normalize_answer(answer) == normalize_answer(gold))


def _overlap(answer: str, gold: str) -> float:
    ours, right = normalize_answer(answer), normalize_answer(gold)
    if not ours or not right:
        return float(ours == right)
    common = sum((Counter(ours) & Counter(right)).values())
    return 2 * common / (len(ours) + len(right))


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


def self_bleu(texts: Sequence[str]) -> float:
    """The mean BLEU of each text with all others as references (Zhu et al., 2018): 100 for copies.

    With sacrebleu's sentence smoothing, so that a short text without a common 4-gram is not 0.
    """
    if len(texts) < 2:
        raise SettingError(f"self-BLEU compares texts with each other; got {len(texts)}. Give two or more.")
    bleu = _sacrebleu().sentence_bleu
    scores = [bleu(text, [*texts[:i], *texts[i + 1 :]]).score for i, text in enumerate(texts)]
    return float(sum(scores) / len(scores))


def _ngrams(text: Text, n: int) -> list[tuple[Hashable, ...]]:
    if n < 1:
        raise SettingError(f"n is {n}; n-grams have at least 1 word.")
    words = text.split() if isinstance(text, str) else list(text)
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def _same_length(texts: Sequence[Any], others: Sequence[Any], what: str) -> None:
    if len(texts) != len(others) or not texts:
        raise SettingError(f"there are {len(texts)} texts and {len(others)} {what}. Give one for each text.")


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ModuleNotFoundError:
        raise _missing("BLEU", "sacrebleu") from None
    return sacrebleu


def _missing(what: str, package: str) -> UserError:
    return UserError(f"{what} needs the package {package}. Install it with: pip install 'glassgpt[eval]'")
