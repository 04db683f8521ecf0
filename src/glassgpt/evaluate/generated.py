"""What a generated text is worth: beside reference texts, beside an answer, or beside its own kind.

With references: `bleu` (sacrebleu) and `rouge` (rouge-score), as papers report them. With short answers:
`exact_match` and `f1` by the rules of CoQA. Without either, for open generation: `distinct`, `repetition` and
`self_bleu`, which say how much a model repeats itself within a text and between texts. Shares are between 0
and 1, BLEU and ROUGE between 0 and 100.
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
    """BLEU of all texts together, each beside one or more references; sacrebleu's default tokens ("13a")."""
    _same_length(texts, references, "references")
    if any(not some or any(not one for one in some) for some in references):
        raise SettingError("a text has no reference, or an empty one. Give each at least one text.")
    sacrebleu = _sacrebleu()
    most = max(len(some) for some in references)
    # sacrebleu wants the first reference of every text, then the second of those that have one, and so on.
    columns = [[some[i] if i < len(some) else None for some in references] for i in range(most)]
    return float(sacrebleu.corpus_bleu(list(texts), columns).score)


def rouge(
    texts: Sequence[str], references: Sequence[str], kinds: Sequence[str] = ROUGE_KINDS
) -> dict[str, float]:
    """The mean F-measure of each kind, with stemming; `rougeLsum` takes each line as a sentence."""
    _same_length(texts, references, "references")
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError:
        raise _missing("ROUGE", "rouge-score") from None
    scorer = RougeScorer(list(kinds), use_stemmer=True)
    found = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {kind: 100 * sum(one[kind].fmeasure for one in found) / len(found) for kind in kinds}


# Short answers, by the rules of CoQA's own script.


def normalised(answer: str) -> list[str]:
    """The words of an answer in small letters, without punctuation and articles."""
    kept = "".join(c for c in answer.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def exact_match(answer: str, golds: Sequence[str]) -> float:
    return _as_coqa(_same_words, answer, golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """Words in common, as the harmonic mean of their share in the answer and in the right one."""
    return _as_coqa(_overlap, answer, golds)


def _as_coqa(score: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
    """The best over the right answers. Of several, each is left out in turn and the results are averaged, so
    that people, who are scored beside the answers of the others, have no advantage."""
    if not golds:
        raise SettingError("there is no right answer to compare with. Give at least one.")
    if len(golds) == 1:
        return score(answer, golds[0])
    points = [score(answer, gold) for gold in golds]
    return sum(max(points[:i] + points[i + 1 :]) for i in range(len(points))) / len(points)


def _same_words(answer: str, gold: str) -> float:
    return float(normalised(answer) == normalised(gold))


def _overlap(answer: str, gold: str) -> float:
    ours, right = normalised(answer), normalised(gold)
    if not ours or not right:
        return float(ours == right)
    common = sum((Counter(ours) & Counter(right)).values())
    return 2 * common / (len(ours) + len(right))


# Open generation. Texts are split at blanks; lists of token ids do as well.

Text = str | Sequence[Hashable]


def distinct(texts: Sequence[Text], n: int) -> float:
    """Different n-grams of all texts together, as a share of all their n-grams (Li et al., 2016)."""
    every = [gram for text in texts for gram in _ngrams(text, n)]
    return len(set(every)) / len(every) if every else 0.0


def repetition(text: Text, n: int) -> float:
    """The share of a text's n-grams that stood in it before ("seq-rep-n" of Welleck et al., 2020)."""
    every = _ngrams(text, n)
    return 1 - len(set(every)) / len(every) if every else 0.0


def self_bleu(texts: Sequence[str]) -> float:
    """The mean BLEU of each text beside all others as references (Zhu et al., 2018): 100 for copies.

    Smoothed as sacrebleu does for single sentences, so that a short text without a common 4-gram is not 0.
    """
    if len(texts) < 2:
        raise SettingError(
            f"self-BLEU compares texts with each other, and there is {len(texts)}. Give two or more."
        )
    score = _sacrebleu().sentence_bleu
    found = [score(text, [*texts[:i], *texts[i + 1 :]]).score for i, text in enumerate(texts)]
    return float(sum(found) / len(found))


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
