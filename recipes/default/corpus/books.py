"""Books as Project Gutenberg's volunteers typed them, to paragraphs with a blank line between."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from statistics import quantiles

from corpus.page import straight
from corpus.repository import Repository

Document = tuple[str, str]
START = re.compile(r"\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG[^\n]*(?:\n[^\n]*)?\*\*\*")
END = re.compile(
    r"\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG|\n\s*End of (?:the |this )?Project Gutenberg"
)
# In square brackets: pictures, pages, notes in the margin or below the page, and their marks.
BRACKETS = re.compile(
    r"\[(?:Illustrations?|Illus\.|Pg|Page|Footnotes?|Sidenote|Transcriber|Editor's note|Note \d|Picture|"
    r"Music|Decoration|Blank page|Frontispiece|Ornament)"
    r"[^\[\]]{0,3000}(?:\[[^\[\]]{0,200}\][^\[\]]{0,3000})*\]|"
    r"\[\*+\]|\[[A-Z†‡§]\]|\[\d{1,4}[a-z]?\]|\{\d{1,4}\}|\[[Pp]\.? ?\d+\]",
    re.IGNORECASE,
)
GREEK = re.compile(r"\[Greek: ([^\[\]]{1,200})\]")
LIGATURE = re.compile(r"\[(oe|OE|ae|AE)\]")
ACCENT = re.compile(r"\[[=~^:'`)(.]([A-Za-z])\]")
EMPHASIS = re.compile(r"(?<![\w_])[_=~+#]+(?=[^\s_=~+#])|(?<=[^\s_=~+#])[_=~+#]+(?![\w_])")
# A short paragraph with one of these is the publisher's, the typist's or the library's.
NOT_TEXT = (
    "project gutenberg|transcriber|pgdp.net|distributed proofread|produced by|e-text prepared|etext prepared|"
    "all rights reserved|copyright|printed in|printed by|gutenberg.org|archive.org|hathitrust|"
    "by the same author|small capitals|underscores|typographical|errata|utf-8|character set|"
    "public domain|ebook|renewed on this|table of contents|list of illustrations|blank pages|* * *|scanned by"
).split("|")
SPACES = re.compile(r"  +")
BEFORE_STOP = re.compile(r" +(?=[,;.!?]\s)")
RULE = re.compile(r"[\W_]+")
NUMBERED = re.compile(
    r"(?:(?:chapter|chap\.|book|part|letter|no\.)\s+)?(?:[ivxlcdm]{1,7}|\d{1,3})\b[.:)—–-]?", re.IGNORECASE
)
HEADING = re.compile(
    r"(?:chapter|book|part|prologue|letter|canto|act|scene|section|introduction|preface|the first)\b|"
    r"[IVXLC]+\.?$|1\.?$",
    re.IGNORECASE,
)
BACK = re.compile(
    r"(?:alphabetical |general |the )?index\b|footnotes?:?$|notes:?$|advertisements?\b|appendix: works|"
    r"transcriber|catalogue of|books by|novels by|bibliography$|works by|popular novels",
    re.IGNORECASE,
)
# "Page 67: Therese changed to Theresa", and references by page
CORRECTION = re.compile(
    r"\b(?:page|line|p\.|pp\.) ?\d|"
    r"\b(?:was|were|been) (?:replaced|changed|corrected|removed|inserted|retained)\b"
    r"|hyphen|\bsic\b|[Ii]bid\.|op\. cit|https?:|\d{4}\.$",
)
THE_END = re.compile(r"(?:the )?end\.?$|finis\.?$", re.IGNORECASE)
NOTE_BELOW = re.compile(r"(?:\[[\d*†A-Z]{1,3}\]|\*|†|\(\d+\))\s*\S")


def inner(text: str) -> str:
    """The text between Project Gutenberg's header and its license."""
    start = START.search(text, 0, 60_000)
    text = text[start.end() :] if start else text
    end = END.search(text)
    return text[: end.start()] if end else text


def line_width(text: str) -> float:
    """How wide the typist's lines are: the ninth decile of a sample."""
    sample = [len(line) for line in text[:400_000].split("\n") if len(line) > 20]
    return quantiles(sample, n=10)[8] if len(sample) > 20 else 70.0


def join_lines(lines: list[str], text: str) -> str:
    """Hard line breaks undone; a word that was cut by one is whole again."""
    joined = lines[0]
    for line in lines[1:]:
        if joined.endswith("--"):
            joined += line
        elif joined.endswith("-") and joined[-2:-1].isalpha() and line[:1].islower():
            left = re.search(r"\w*$", joined[:-1]).group(0)  # type: ignore[union-attr]
            right = re.match(r"\w*", line).group(0)  # type: ignore[union-attr]
            joined = (joined[:-1] if f" {left}{right}" in text else joined) + line
        else:
            joined += f" {line}"
    return joined


def is_list(lines: list[str]) -> bool:
    """Contents, an index, a table: lines that begin with a number or end with a page."""
    if len(lines) < 3:
        return False
    listed = sum(
        1 for line in lines if line[-1].isdigit() or "   " in line or "|" in line or NUMBERED.match(line)
    )
    return listed > 0.5 * len(lines)


def paragraphs_of(text: str) -> Iterator[str]:
    width = line_width(text)
    lower = text.lower()
    not_text = [words for words in NOT_TEXT if words in lower]  # few of them are in any one book
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in map(str.strip, block.split("\n")) if line]
        if not lines or RULE.fullmatch(block) or lines[-1].endswith("***"):
            continue
        if len(block) < 1200 and not_text:
            lower = block.lower()
            if any(words in lower for words in not_text):
                continue
        if is_list(lines) or NOTE_BELOW.match(lines[0]):
            continue
        verse = len(lines) > 1 and max(map(len, lines)) < 0.8 * width
        if not verse and len(lines) > 3:  # every line begins with a capital
            verse = sum(line.lstrip("\"'“‘(")[:1].isupper() for line in lines) > 0.85 * len(lines)
        lines = [" ".join(line.split()) for line in lines]
        yield "\n".join(lines) if verse else join_lines(lines, text)


def is_prose(paragraph: str) -> bool:
    return len(paragraph) > 120 and paragraph.rstrip("\"'”’)]").endswith((".", "!", "?", "--", ":", ";", "—"))


def is_sentence(paragraph: str) -> bool:
    """Ends as a sentence does, and is not a title page's line in capitals."""
    ended = paragraph.rstrip("\"'”’)]").endswith((".", "!", "?", "-", ":", ";", ",", "—"))
    return ended and len(paragraph) > 12 and sum(word.islower() for word in paragraph[:200].split()) > 1


def first_page(paragraphs: list[str]) -> int:
    """Where the text begins, after title page and contents: prose, and what leads up to it."""
    for number, paragraph in enumerate(paragraphs[:400]):
        near = paragraphs[number : number + 6]
        if is_prose(paragraph) and sum(map(is_sentence, near)) >= min(4, len(near)):
            break
    else:
        return 0
    while number and is_sentence(paragraphs[number - 1]):
        number -= 1
    for back in range(1, min(number, 3) + 1):  # a chapter's number and name
        above = paragraphs[number - back]
        if len(above) > 100:
            break
        if HEADING.match(above):
            return number - back
    return number


def last_page(paragraphs: list[str]) -> int:
    """Where the text ends, before index, notes and advertisements."""
    count = len(paragraphs)
    for number in range(count * 4 // 5, count):
        paragraph = paragraphs[number]
        if len(paragraph) < 60 and (
            (THE_END.match(paragraph) and number > count * 9 // 10) or BACK.match(paragraph)
        ):
            count = number
            break
    while count > 1 and (not is_sentence(paragraphs[count - 1]) or CORRECTION.search(paragraphs[count - 1])):
        count -= 1
    return count


def book_text(raw: str) -> str:
    text = inner(raw)
    if "[" in text or "{" in text:
        text = ACCENT.sub(r"\1", LIGATURE.sub(r"\1", GREEK.sub(r"\1", BRACKETS.sub("", text))))
    paragraphs = list(paragraphs_of(text))
    paragraphs = paragraphs[first_page(paragraphs) : last_page(paragraphs)]
    text = straight("\n\n".join(paragraphs))
    if any(sign in text for sign in "_=~+#"):
        text = EMPHASIS.sub("", text)
    return BEFORE_STOP.sub("", SPACES.sub(" ", text) if "  " in text else text).strip()


# Project Gutenberg's numbers of what is left out: still in copyright, in the United States or by the look of
# it (wrong clearances, modern translations, books given away by their authors), and erotica and hate.
NOT_FREE = frozenset(
    """PG101 PG13211 PG13614 PG14005 PG14323 PG22747 PG22814 PG2481 PG25305 PG27827 PG28521 PG28522 PG29827
    PG30142 PG30254 PG33102 PG34325 PG37060 PG37539 PG39 PG42988 PG4685 PG51015 PG52059 PG54672 PG57284
    PG58344 PG60825 PG63577 PG64977 PG66417 PG67025 PG6852 PG71378 PG71822 PG8086
    PG4686 PG12082 PG16955 PG17385 PG25020 PG27045 PG33243 PG34981""".split()
)
# Tables, dictionaries, grammars of other languages, Middle English.
NOT_PROSE = frozenset(
    """PG25 PG266 PG1662 PG21197 PG30282 PG33953 PG37683 PG38538 PG38699 PG38700 PG42083 PG43016 PG43089
    PG43660 PG44292 PG44653""".split()
)
LEFT_OUT = NOT_FREE | NOT_PROSE
FICTION = re.compile(r"fiction|stories|novel|tales|romance|fairy|juvenile", re.IGNORECASE)


def _table(repository: Repository, path: str, delimiter: str) -> list[dict[str, str]]:
    (text,) = (text for _, text in repository.read(repository.files(path)))
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def _name(number: str, title: str, author: str) -> str:
    return f"{number} {title.replace(' : $b ', ': ').replace('$b ', '')} / {author}"


def copyshield(fiction: bool) -> Callable[[Repository], Iterator[Document]]:
    def read(repository: Repository) -> Iterator[Document]:
        csv.field_size_limit(1 << 30)
        about = {row["id"]: row for row in _table(repository, "data/metadata.csv", ",")}
        files = []
        for blob in repository.files("data/text/"):
            number = re.search(r"PG\d+", blob.path)
            row = about.get(number.group(0)) if number else None
            wanted = row and row["language"] == "['en']" and row["id"] not in LEFT_OUT
            if row and wanted and bool(FICTION.search(row["subjects"])) == fiction:
                files.append((blob, row))
        texts = repository.read(blob for blob, _ in files)
        rows = {blob.path: row for blob, row in files}
        for path, text in texts:
            row = rows[path]
            yield _name(row["id"], row["title"], row["author"]), book_text(text)

    return read


def zeta(repository: Repository) -> Iterator[Document]:
    about = {row["idno"]: row for row in _table(repository, "metadata_4subgenres_1900-1969.csv", "\t")}
    for path, text in repository.read(repository.files("corpus/")):
        number = path.removeprefix("corpus/").removesuffix(".txt")
        row = about.get(number, {"title": "", "author": ""})
        if number not in LEFT_OUT:
            yield _name(number, row["title"], row["author"]), book_text(text)


MAGAZINES_FROM = 972  # from this number on: scans of magazines of 1950 to 1980, in copyright
SHORT_LINE = 58


def with_blank_lines(text: str) -> str:
    """Blank lines where a copy lost them: a short line that ends a sentence ends a paragraph."""
    lines = text.split("\n")
    parts = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        end = line.rstrip()
        ends = len(line) < SHORT_LINE and end.endswith((".", "!", "?", '"', "”", "'", "*", ":"))
        speech = end.endswith(('."', '!"', '?"', ".”", "!”", "?”")) and following.lstrip()[:1] in ('"', "“")
        indented = following.startswith("  ") and not line.startswith("  ")
        heading = len(line) < 40 and line.isupper()
        parts.append(line + ("\n" if ends or speech or indented or heading else ""))
    return "\n".join(parts)


def sfgram(repository: Repository) -> Iterator[Document]:
    """Of every book's versions the one that kept its blank lines, else the longest."""
    about_books = {}
    for path, text in repository.read(
        blob for blob in repository.files("books/") if blob.path.endswith(".json")
    ):
        about_books[re.sub(r"\D", "", path)] = json.loads(text)
    best: dict[str, tuple[bool, int, str]] = {}
    for path, text in repository.read(sorted(set(repository.history("book-contents/")))):
        number = re.sub(r"\D", "", path.rpartition("/")[2])
        if number and int(number) < MAGAZINES_FROM:
            best[number] = max(best.get(number, (False, 0, "")), (text.count("\n\n") > 20, len(text), text))
    for number, (blank_lines, _, text) in sorted(best.items()):
        about = about_books.get(number, {})
        if about.get("copyright") != "Public domain in the USA.":
            continue
        title, author = (
            about.get("original_title") or about.get("title") or "",
            about.get("author_name") or "",
        )
        yield (
            _name(f"SFGram {number}", title, author),
            book_text(text if blank_lines else with_blank_lines(text)),
        )


def by_author(repository: Repository) -> Iterator[Document]:
    for path, text in repository.read(blob for blob in repository.files() if blob.path.endswith(".txt")):
        if "COPYRIGHTED Project Gutenberg" in text[:5000]:  # given away, but not free
            continue
        author, _, title = path.rpartition("/")
        yield _name("", title.removesuffix(".txt"), author).strip(), book_text(text)
