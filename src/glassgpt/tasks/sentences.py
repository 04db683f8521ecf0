"""Splitting text into sentences, for summaries of three sentences and translators of one; joining wrapped
lines; ending a text where it begins to repeat itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# A sentence ends with . ! ? or an ellipsis, perhaps a closing quote or bracket, before white space and
# something that can begin a sentence. French puts a space before ! and ?, which stays with them.
_END = re.compile(r"""(?<=[.!?…])["'”’»)\]]*\s+(?=["'“‘«(\[]?\s?[A-ZÀ-ÖØ-ÞŒ0-9])""")
# The same before anything, and at semicolons: for texts that are too long otherwise, as without capitals.
_LOOSE_END = re.compile(r"""(?<=[.!?…;])["'”’»)\]]*\s+""")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Lt|Sgt|Capt|Rev|Hon|Jr|Sr|vs|etc|No|Vol|Fig|pp|cf|M|Mme|Mlle|av|ap)"
    r"|\b[A-Z])\.$"
)


def split_sentences(text: str, loosely: bool = False) -> list[str]:
    """The sentences of a text, without the white space around them. A line break also ends a
    sentence. `loosely` splits at semicolons and before small letters as well."""
    ends = _LOOSE_END if loosely else _END
    sentences: list[str] = []
    for line in text.splitlines():
        start = 0
        for end in ends.finditer(line):
            tail = line[max(start, end.start() - 12) : end.end()].rstrip()  # longer than any abbreviation
            if _ABBREVIATION.search(tail):
                continue
            sentences.append(line[start : end.end()].strip())
            start = end.end()
        if line[start:].strip():
            sentences.append(line[start:].strip())
    return sentences


def complete_sentences(pieces: Iterable[str]) -> Iterator[str]:
    """The sentences of a text that comes in pieces, each when the next one has begun, the last at the end."""
    text, yielded = "", 0
    for piece in pieces:
        text += piece
        done = split_sentences(text)[yielded:-1]
        yield from done
        yielded += len(done)
    yield from split_sentences(text)[yielded:]


def first_sentences(text: str, count: int) -> str:
    return " ".join(split_sentences(text)[:count])


# The beginning of a line that continues no other: a heading, a list item, a quotation, a row of a table.
_ITEM = re.compile(r"\s*(?:[-*+•>|#]|\d+[.)]\s|```)")
_FENCED = re.compile(r"^ *(```|~~~).*?^ *\1.*?$", re.M | re.S)
MIN_MARGIN = 40  # characters: shorter lines were ended by their author, not by an editor's margin


def unwrap(text: str) -> str:
    """Join the lines of paragraphs that were wrapped at a margin, as in emails and READMEs.

    A line that ends within a sentence continues in the next one if that one's first word had no room on it.
    Markdown's blocks of code are left out.
    """
    return "\n\n".join(map(_unwrap_paragraph, re.split(r"\n\s*\n", _FENCED.sub("", text))))


def _unwrap_paragraph(paragraph: str) -> str:
    lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
    margin = max(map(len, lines), default=0)
    joined: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        full = len(before) + 1 + len(line.split()[0]) > margin >= MIN_MARGIN
        if full and before[-1:] not in ("", *".!?:…|") and not _ITEM.match(line):
            joined[-1] += f" {line}"
        else:
            joined.append(line)
    return "\n".join(joined)


PHRASE = 4  # words: a phrase this long comes twice in a short text only if the model is caught in a loop


def without_repetition(text: str) -> str:
    """A text up to the sentence in which it begins to repeat itself; of the first sentence, the part
    before that.

    Repetition is a phrase of four words that occurred before, a phrase of two or three words twice in a
    row, or a word three times.
    """
    kept: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for sentence in split_sentences(text):
        end = repetition_start(sentence, seen)
        if end is not None:
            start = sentence[:end].rstrip(" ,;:-–—(")
            return " ".join(kept) if kept else f"{start} …" if start else ""
        kept.append(sentence)
    return " ".join(kept)


def repetition_start(sentence: str, seen: set[tuple[str, ...]]) -> int | None:
    """Where a sentence begins to repeat itself or phrases `seen` before; None if it does not. Its own
    phrases are added to `seen`."""
    matches = list(re.finditer(r"\w+(?:['’]\w+)?", sentence))
    words = [match[0].casefold() for match in matches]
    for end in range(1, len(words) + 1):
        phrase = tuple(words[max(0, end - PHRASE) : end])
        if len(phrase) == PHRASE and phrase in seen:
            return matches[end - PHRASE].start()
        for size, times in ((1, 3), (2, 2), (3, 2)):
            repeated = words[max(0, end - size * times) : end]
            if len(repeated) == size * times and repeated == repeated[:size] * times:
                return matches[end - size * (times - 1)].start()
        if len(phrase) == PHRASE:
            seen.add(phrase)
    return None
