"""Detokenizers: a model trained on web text has rarely seen `do n't` or `1 @,@ 000`.

Only spaces and the corpus's marks change, so the result can be aligned with the original; losses are divided
by the original's number of tokens, so a shorter text gains nothing.
"""

from __future__ import annotations

import re

# What attaches to the word before it, and to the word after it.
_BEFORE = (r" (?=[,.;:!?%)\]}](?:[\s\")]|$))", "")
_AFTER = (r"(?<=\s[(\[{$£€#]) (?=\S)|(?<=^[(\[{$£€#]) (?=\S)", "")
_ENDINGS = (r" (?='(?:s|S|d|m|ll|re|ve)\b)", "")  # it 's, they 'll
_NOT = (r" (?=n't\b)", "")  # do n't
_PLURAL_OWNER = (r"(?<=s) (?='\s)", "")  # the readers ' choice
_BLANKS = (r"(?m)^ +| +$", "")


def apply(rules: tuple[tuple[str, str], ...], text: str) -> str:
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


def wikitext(text: str) -> str:
    """WikiText: numbers and hyphens between @ signs, spaced punctuation, headings between = signs."""
    text = apply(((r" @([-,.])@ ", r"\1"), (r"= (?==)", "=")), text)
    return apply((_BEFORE, _AFTER, _ENDINGS, _NOT, _PLURAL_OWNER, _BLANKS), quotes(text))


def ptb(text: str) -> str:
    """Penn Treebank as Mikolov published it: lower case, N for numbers, no punctuation."""
    return apply((_BEFORE, _AFTER, _ENDINGS, _NOT, _PLURAL_OWNER, _BLANKS), text)


def one_billion(text: str) -> str:
    """The One Billion Word benchmark: spaced punctuation, straight quotes."""
    return apply((_BEFORE, _AFTER, _ENDINGS, _NOT, _PLURAL_OWNER, _BLANKS), quotes(text))


_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def childrens_books(text: str) -> str:
    """The Children's Book Test: the tokens of the Penn Treebank, with its brackets and quotes."""
    for name, sign in _BRACKETS.items():
        text = text.replace(name, sign)
    text = apply(((r"`` ", '"'), (r" ''", '"'), (r"(?<=\s)` ", "'")), text)
    return apply((_BEFORE, _AFTER, _ENDINGS, _NOT, _PLURAL_OWNER, _BLANKS), text)


def quotes(text: str) -> str:
    """Every other straight quote of a line opens and attaches to the next word; the rest close."""
    return "\n".join(_quotes_of_line(line) for line in text.split("\n"))


def _quotes_of_line(line: str) -> str:
    opening = True

    def place(match: re.Match[str]) -> str:
        nonlocal opening
        opening = not opening
        return f'{match[1]}"' if not opening else f'"{match[2]}'

    return re.sub(r'( ?)"( ?)(?=\s|\S|$)', place, line)


# The rules of lm-evaluation-harness for its task `wikitext`, in its order and with its bugs, which affect the
# results. (`/' [0-9]/` was meant as a regular expression but is matched literally: it never occurs.)
_HARNESS_RULES = (
    (r"s '", "s'"),
    (r" @([-,.])@ ", r"\1"),
    (r" : ", ": "),
    (r" ; ", "; "),
    (r" \. ", ". "),
    (r" ! ", "! "),
    (r" \? ", "? "),
    (r" , ", ", "),
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r"\"\s*([^\"]*?)\s*\"", r'"\1"'),
    (r"'\s*([^']*?)\s*'", r"'\1'"),
    (r"= = = =", "===="),
    (r"= = =", "==="),
    (r"= =", "=="),
    (r" ° ", "°"),
    (r" \n", "\n"),
    (r"\n ", "\n"),
    (r" N ", " 1 "),
    (r" 's", "'s"),
)


def harness_wikitext(page: str) -> str:
    return apply(_HARNESS_RULES, page)
