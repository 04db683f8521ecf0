"""Readers of Wikipedia's articles, in the six forms in which public repositories keep them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from urllib.parse import unquote

from corpus.page import LONG, Page, is_sentence, straight
from corpus.repository import Blob, Repository
from corpus.wikitext import plain

MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
LIST_TITLE = re.compile(
    rf"(Lists?|Outline|Index|Timeline|Glossary) of\b|\d{{1,4}}s?( BC)?$|AD ?\d+$|({MONTHS}) \d{{1,2}}$"
)
Document = tuple[str, str]


def is_list(title: str) -> bool:
    return LIST_TITLE.match(title) is not None


# ---- plain text by pandoc: two blank lines before a heading, capitals for the subject, _italics_

PICTURE = re.compile(
    r"[^\s\[\]]{1,200}\.(?:jpe?g|png|svg|gif|tiff?|ogg|webm|ogv|pdf)\b(?:[^\n\[\]]{0,300}\]\])?",
    re.IGNORECASE,
)
PICTURE_ENDINGS = (
    ".jp",
    ".JP",
    ".pn",
    ".PN",
    ".sv",
    ".SV",
    ".gif",
    ".GIF",
    ".tif",
    ".TIF",
    ".og",
    ".OG",
    ".webm",
    ".pdf",
)
CUT_LINK = re.compile(r"^[^\[]{0,400}?\]\]\s*")
UNDERSCORES = re.compile(r"(?<!\w)_+|_+(?!\w)")
TABLE_RULE = re.compile(r"\s*[-+|=]{3,}")
CAPITALS = re.compile(
    r"(?<![\w])[A-ZÀ-Þ][A-ZÀ-Þ'.\-]+(?: (?:[A-ZÀ-Þ][A-ZÀ-Þ'.\-]*|&|\d+)(?![a-zà-ÿ]))*(?![a-zà-ÿ])"
)
SMALL = frozenset("of the and in on at de la von van der for to a an or du del el by with".split())


def without_capitals(line: str, title: str, text: str) -> str:
    """The subject, printed in capitals for bold type, as the title and the rest of the article write it."""
    if not CAPITALS.search(line, 0, 300):
        return line
    usual = {word.upper(): word for word in re.findall(r"[^\W\d_][\w'-]*", text) if not word.isupper()}
    lower = {word.upper(): word for word in re.findall(r"(?<=[a-z,] )[^\W\d_A-Z][\w'-]*", text)}
    in_title = {word.upper(): word for word in re.findall(r"[\w'-]+", re.sub(r" \(.*", "", title))[1:]}

    def write(match: re.Match[str]) -> str:
        run = match.group(0).split()
        several = len(run) > 1 and len(match.group(0)) > 6
        starts = not line[: match.start()].strip() or line[: match.start()].rstrip().endswith(".")
        words = []
        for number, word in enumerate(run):
            if number and word.lower() in SMALL:
                word = word.lower()
            elif len(word) < 6 and word not in usual and text.count(word) > 1:  # NATO
                pass
            elif several or (len(word) > 3 and (word in usual or len(word) > 6)):
                word = in_title.get(word) or lower.get(word) or usual.get(word) or capitalized(word)
                word = word[:1].upper() + word[1:] if starts and not number else word
            words.append(word)
        return " ".join(words)

    return CAPITALS.sub(write, line[:300]) + line[300:]


def capitalized(word: str) -> str:
    """O'NEILL as O'Neill, MARY-ANN as Mary-Ann, W.E.B. and II as they are."""
    if re.fullmatch(r"(?:[A-Z]\.)+|[IVX]+", word):
        return word
    return re.sub(r"[^\W_]+", lambda part: part.group(0).capitalize(), word).replace("'S", "'s")


def pandoc(repository: Repository) -> Iterator[Document]:
    for path, text in repository.read(repository.longest_versions("Page/")):
        title = path.removeprefix("Page/").removesuffix(".md").replace("_", " ")
        if is_list(title):
            continue
        page, count = Page(title), 0
        lines = text.split("\n")
        before = ["", "", *lines]  # before[i] and before[i + 1] are the two lines ahead of lines[i]
        after = [*lines[1:], ""]
        for number, line in enumerate(lines):
            if not line.strip() or line.startswith("Category:") or (len(line) < 8 and line[0] == "["):
                continue
            if re.match(r"\[\d+\] ", line):  # the footnotes, at the end
                break
            alone = not before[number + 1].strip() and not after[number].strip()
            ends = line[-1] in ".,;:!?"
            if number and not ends and len(line) < 90 and line[0] not in " -|+[":
                if alone and not before[number].strip():
                    page.heading(2, line)
                    continue
                if alone and len(line) < 60 and line[-1] != '"':
                    page.heading(3, line)
                    continue
            if any(ending in line for ending in PICTURE_ENDINGS):
                line = PICTURE.sub("", line)
            if "]]" in line and "[[" not in line:
                line = CUT_LINK.sub("", line)
            line = (UNDERSCORES.sub("", line) if "_" in line else line).replace("}}", "").replace("''", "")
            if line.startswith(("-   ", "    ")):  # a list, or a table's cells
                line = line.lstrip("- ")
                if len(line) < 120:
                    continue
            if line.count("  ") >= 2 or TABLE_RULE.match(line) or not is_sentence(line.strip()):
                continue
            if (count == 0 and len(line) < 40) or "|" in line:  # what a template left
                continue
            page.paragraph(without_capitals(line, title, text) if count < 2 else line)
            count += 1
        yield title, page.text()


# ---- wikitext

ESCAPED = re.compile(r"<U\+([0-9A-F]{4,8})>")
WIKI_HEADING = re.compile(r"(={2,5})\s*(.*?)\s*={2,5}")


MARKUP_LEFT = re.compile(r"\{\{|\}\}|\[\[|\]\]|thumb\||\|.*\|.*\|")


def raw_wikitext(repository: Repository) -> Iterator[Document]:
    for path, text in repository.read(repository.files("lang_model/enwiki/text/")):
        if text[:20].lower().startswith("#redirect"):
            continue
        title, text = plain(ESCAPED.sub(lambda match: chr(int(match.group(1), 16)), text))
        page = Page(title)
        for line in map(str.strip, text.split("\n")):
            heading = WIKI_HEADING.fullmatch(line)
            if heading:
                page.heading(min(len(heading.group(1)), 4), heading.group(2))
                continue
            if not line or line[0] in "|!{}" or MARKUP_LEFT.search(line):
                continue
            if line[0] in "*#:;":
                line = line.lstrip("*#:; ")
                if len(line) < 120:
                    continue
            if is_sentence(line):
                page.paragraph(line)
        yield title or path, page.text()


# ---- pages copied from the browser, "[edit]" after each heading

CHROME = re.compile(
    r"Main articles?|See also|Further information|Part of a series|Not to be confused|For other uses|"
    r"This article|Retrieved from|Coordinates|Play media|\^|From Wikipedia|Jump to|This page was|Categories:"
)
ENDS = re.compile(r"""[.!?"”)\]']$""")


STYLES = re.compile(r"\.mw-parser|displaystyle|Hidden categories")


def browser_pages(repository: Repository) -> Iterator[Document]:
    files = [blob for blob in repository.files("data/") if blob.path.endswith(".txt")]
    for path, text in repository.read(files):
        title = path.removeprefix("data/").removesuffix(".txt")
        if is_list(title):
            continue
        page = Page(title)
        for line in map(str.strip, text.split("\n")):
            if line.endswith("[edit]") and len(line) < 120:
                page.heading(2, line.removesuffix("[edit]"))
            elif (
                len(line) >= 100 and ENDS.search(line) and not CHROME.match(line) and not STYLES.search(line)
            ):
                page.paragraph(line)
        yield title, page.text()


# ---- number, title without spaces, paragraphs

INSIDE_TITLE = re.compile(r"(?<=[a-z0-9)])(?=[A-Z(])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=\d)")
LISTEN = re.compile(r"\s*\(?listen\)?\s*\(help·info\)\)?|\(listen\)")


def spaced_title(title: str, text: str) -> str:
    """`Second Epistleto Timothy` looked up in its own text, where the words are apart."""
    letters = [re.escape(letter) for letter in re.sub(r"\W", "", title)]
    found = (
        re.search(r"[\W_]{0,2}".join(letters), text[:3000], re.IGNORECASE) if 3 < len(letters) < 60 else None
    )
    if found and not found.group(0)[:1].islower():
        return " ".join(straight(found.group(0)).split())
    return INSIDE_TITLE.sub(" ", title)


def core_articles(repository: Repository) -> Iterator[Document]:
    files = [blob for blob in repository.files("dump/") if blob.path.endswith(".txt")]
    for _, text in repository.read(files):
        lines = text.split("\n")
        if len(lines) < 3:
            continue
        title = spaced_title(lines[1].strip(", "), text[len(lines[0]) + len(lines[1]) :])
        if is_list(title) or is_list(INSIDE_TITLE.sub(" ", title)):
            continue
        page = Page(title)
        for line in map(str.strip, lines[2:]):
            if len(line) >= LONG and ENDS.search(line) and "displaystyle" not in line:
                page.paragraph(LISTEN.sub("", line))
        yield title, page.text()


# ---- WikiExtractor's <doc> elements

DOC = re.compile(r'<doc id="\d+"[^>]*?title="([^"]*)">\n(.*?)\n?</doc>', re.DOTALL)
# "Early life.", alone on its line, was a heading.
HEADING_LINE = re.compile(r"(?!.*[.!?;:] )(?=.{2,70}$)[^\W_]\S*(?: \S+){0,8}\.")
MARKUP = re.compile(r"<[^>\n]{1,80}>|__[A-Z]+__")
UPDATE = re.compile(r"\[ ?\[update\]\]")
PAGE_NUMBER = re.compile(r"(?<=[.,;\"]):\d+(?:[–-]\d+)?")
PRONUNCIATION = re.compile(r" ?\](?=[,;:) ])")  # "(Greek: Aristotélēs ]; 384": a sound was there
# "The tower has of office space", "is about long.": the extractor lost what {{convert}} printed.
_BEFORE = (
    "has have had about approximately around roughly nearly covers covering occupies contains spans measures"
)
_ABOUT = "about approximately roughly nearly just is was are were measures measuring"
_WAY = "north south east west long wide tall away from"
_SIDE = "long wide tall away high"
_SIZE = "area elevation altitude height length depth average total distance speed density weight rate"
LOST_NUMBER = {
    *((word, "of") for word in _BEFORE.split()),
    *((word, size + stop) for word in _ABOUT.split() for size in _SIDE.split() for stop in ",.;"),
    *((word, size) for word in _ABOUT.split()[:4] for size in _WAY.split()),
    *((size, "of" + stop) for size in _SIZE.split() for stop in ",.;)"),
    *(("of", word) for word in "and or per above".split()),
}  # fmt: skip
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")


def complete_sentences(line: str) -> str:
    """The line without the sentences that lost a number."""
    words = line.split()
    if LOST_NUMBER.isdisjoint(pairwise(words)):
        return line
    kept = []
    for sentence in SENTENCE.split(line):
        words = sentence.split()
        if LOST_NUMBER.isdisjoint(pairwise(words)):
            kept.append(sentence)
    return " ".join(kept)


def extracted(repository: Repository, files: list[Blob]) -> Iterator[Document]:
    for _, text in repository.read(files):
        for match in DOC.finditer(text):
            title = html.unescape(match.group(1))
            if is_list(title) or "disambiguation" in title:
                continue
            page = Page(title)
            body = MARKUP.sub("", html.unescape(html.unescape(match.group(2))))
            for line in map(str.strip, body.split("\n")[1:]):
                if not line or "formula_" in line or line.startswith("BULLET::::"):
                    continue
                if HEADING_LINE.fullmatch(line):
                    page.nested_heading(line.removesuffix("."))
                    continue
                line = PAGE_NUMBER.sub("", UPDATE.sub("", line))
                line = PRONUNCIATION.sub("", line) if "]" in line and "[" not in line else line
                page.paragraph(complete_sentences(line))
            yield title, page.text()


def extracted_in_history(under: str) -> Callable[[Repository], Iterator[Document]]:
    def read(repository: Repository) -> Iterator[Document]:
        newest = {blob.oid: blob for blob in repository.history(under) if "/wiki_" in blob.path}
        return extracted(repository, sorted(newest.values(), key=lambda blob: (blob.path, blob.oid)))

    return read


def extracted_files(repository: Repository) -> Iterator[Document]:
    return extracted(repository, [blob for blob in repository.files("text/") if "/wiki_" in blob.path])


# ---- opening sections, one token a word

DETOKENIZE = (
    (re.compile(r" ([,.;:!?%)\]}])"), r"\1"),
    (re.compile(r"([(\[{$£€#]) "), r"\1"),
    (re.compile(r" ('s|'t|'re|'ve|'ll|'d|'m|n't)\b"), r"\1"),
    (re.compile(r"`` ?"), '"'),
    (re.compile(r" ?''"), '"'),
    (re.compile(r" ' (?=s\b)"), "'"),
    (re.compile(r'" ([^"]*?) "'), r'"\1"'),
    (re.compile(r"(?<=\d) (?=[–-] \d)|(?<=\d [–-]) (?=\d)"), ""),
    (re.compile(r"(?<=\d)([–-]) (?=\d)"), r"\1"),
)


def openings(repository: Repository) -> Iterator[Document]:
    seen = set()
    for _, text in repository.read(repository.files("request_tok/")):
        for address, opening in json.loads(text).items():
            if address in seen or len(opening) < 250:
                continue
            seen.add(address)
            title = unquote(address.removeprefix("/wiki/")).replace("_", " ")
            if is_list(title):
                continue
            for pattern, replacement in DETOKENIZE:
                opening = pattern.sub(replacement, opening)
            page = Page(title)
            page.paragraph(opening)
            yield title, page.text()
