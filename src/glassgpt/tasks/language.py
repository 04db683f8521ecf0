"""Whether a text is in the language a translator expects: by its letters and its most frequent words.

Half a dozen function words tell European languages apart after a sentence or two. A short text without any is
let through: this warns, it does not judge.
"""

from __future__ import annotations

import re

NAMES = {"en": "English", "fr": "French", "de": "German", "es": "Spanish", "it": "Italian", "nl": "Dutch"}
FUNCTION_WORDS = {
    "en": "the of and to is was are were in that it i you he she we they my your his this with for not have "
    "has do does did what where how will would can be been at by from on an",
    "fr": "le la les l de des du d un une et est sont était à au aux en que qui je j tu il elle nous "
    "vous ils ne n pas ce c cette mon ma mes ton son sa avec pour dans sur où comment quoi être avoir a "
    "ont s y se qu",
    "de": "der die das und ist sind war nicht ein eine einen ich du er sie wir ihr mit für auf dem den von "
    "zu es was wo wie im wird hat haben",
    "es": "el la los las de y es son era no un una que yo tú él ella con para por en del al se lo está qué "
    "dónde cómo mi su hay muy",
    "it": "il lo la i gli le di e è sono era non un una che io tu lui lei con per in del della si dove come "
    "cosa mi ha hanno questo",
    "nl": "de het een en is zijn was niet ik jij hij zij wij met voor op van te dat wat waar hoe heeft "
    "deze er",
}
_WORDS = {language: frozenset(words.split()) for language, words in FUNCTION_WORDS.items()}
_WORD = re.compile(r"[^\W\d_]+")
MARGIN = 2  # function words more than those of the expected language


def why_not(text: str, expected: str) -> str | None:
    """What speaks against a text being in the expected language; None if nothing does."""
    letters = [char for char in text if char.isalpha()]
    latin = sum(char < "\u0250" for char in letters)
    if letters and latin < len(letters) / 2:
        return f"is not written in Latin letters, and {NAMES.get(expected, expected)} was expected"
    other = other_language(text, expected)
    if other is not None:
        return f"looks like {NAMES[other]}, and {NAMES[expected]} was expected"
    return None


def other_language(text: str, expected: str) -> str | None:
    """The language whose function words a text has, if that is clearly not the expected one."""
    words_of_text = _WORD.findall(text.lower())
    counts = {code: sum(word in words for word in words_of_text) for code, words in _WORDS.items()}
    if expected not in counts:
        return None
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] >= counts[expected] + MARGIN else None
