"""Cutting text into sentences, for summaries of three sentences and for translators of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# A sentence ends with . ! ? or an ellipsis, perhaps a closing quote or bracket, before white space and
# something that can begin a sentence. French puts a space before ! and ?, which stays with them.
_END = re.compile(r"""(?<=[.!?…])["'”’»)\]]*\s+(?=["'“‘«(\[]?\s?[A-ZÀ-ÖØ-ÞŒ0-9])""")
# The same before anything, and at semicolons: of a text that is too long otherwise, as one without capitals.
_LOOSE_END = re.compile(r"""(?<=[.!?…;])["'”’»)\]]*\s+""")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Lt|Sgt|Capt|Rev|Hon|Jr|Sr|vs|etc|No|Vol|Fig|pp|cf|M|Mme|Mlle|av|ap)"
    r"|\b[A-Z])\.$"
)


def split_sentences(text: str, loosely: bool = False) -> list[str]:
    """The sentences of a text, without the white space around them. A line break ends a sentence, too.
    `loosely`: also at semicolons, and before small letters."""
    ends = _LOOSE_END if loosely else _END
    found: list[str] = []
    for line in text.splitlines():
        start = 0
        for end in ends.finditer(line):
            tail = line[max(start, end.start() - 12) : end.end()].rstrip()  # longer than any abbreviation
            if _ABBREVIATION.search(tail):
                continue
            found.append(line[start : end.end()].strip())
            start = end.end()
        if line[start:].strip():
            found.append(line[start:].strip())
    return found


def complete_sentences(pieces: Iterable[str]) -> Iterator[str]:
    """The sentences of a text that comes in pieces, each when the next one has begun, the last at the end."""
    text, given = "", 0
    for piece in pieces:
        text += piece
        done = split_sentences(text)[given:-1]
        yield from done
        given += len(done)
    yield from split_sentences(text)[given:]


def first_sentences(text: str, count: int) -> str:
    return " ".join(split_sentences(text)[:count])
