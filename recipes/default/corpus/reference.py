"""Readers of other works of reference: Britannica, the Kyoto corpus, textbooks, diplomatic papers."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

from corpus.page import Page, straight, tidy
from corpus.repository import Repository

Document = tuple[str, str]

# ---- Encyclopaedia Britannica, transcribed from scans

PAGE_MARK = re.compile(r"\[\d+:\d+:\d+\]")
BLANK_LINES = re.compile(r"\n\s*\n")
HYPHENATED = re.compile(r"(?<=[a-z])[-¬]\s*\n\s*(?=[a-z])")
# What a scan of old print leaves: marks inside words, digits among letters, stray stops.
GARBAGE = re.compile(r"[|\\~^<>{}■•¬©®»«]")
NOISE = re.compile(r"[a-z][^\w\s'’.,;:!?()\[\]\"”—–/-][a-z]|[a-z]\d[a-z]|\s[.,;:][a-zA-Z]|[A-Z]{2}[a-z][A-Z]")
LONG_S = re.compile(
    r"\b(?:fo|fuch|firft|moft|thofe|thefe|whofe|alfo|itfelf|himfelf|feveral|fhall|fhould|muft|ufe|fome|fay)\b|ſ"
)


def noise_rate(text: str) -> float:
    """Stray marks and misread words in a thousand words."""
    words = text.count(" ") + 1
    return 1000 * (len(NOISE.findall(text)) + len(LONG_S.findall(text))) / words


def heading_of(text: str) -> str:
    """The entry's head: its capitals, as a title."""
    head = re.split(r"[,.(;:]|\s(?=[a-z])", text[:120].strip(), maxsplit=1)[0].strip()
    return " ".join(word.capitalize() if word.isupper() else word for word in head.split())


def britannica(edition: str, noisy_at: float) -> Callable[[Repository], Iterator[Document]]:
    def read(repository: Repository) -> Iterator[Document]:
        for _, text in repository.read(repository.files(f"{edition}/TXT/")):
            text = PAGE_MARK.sub("", text.rpartition("+====")[2].lstrip("=+").strip())
            title = heading_of(text)
            page = Page(title)
            kept = 0
            for paragraph in BLANK_LINES.split(HYPHENATED.sub("", text)):
                line = tidy(paragraph)
                letters = sum(letter.isalpha() or letter == " " for letter in line)
                if len(line) < 60 or letters < 0.85 * len(line) or GARBAGE.search(line):
                    continue
                if noise_rate(line) < noisy_at:
                    if not kept and line.upper().startswith(title.upper()):
                        line = title + line[len(title) :]
                    page.paragraph(line)
                    kept += 1
            yield title, page.text()

    return read


# ---- pages of HTML

ELEMENT = re.compile(r"<(h[2-5]|p)\b[^>]*>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
INSIDE = re.compile(r"<sup\b.*?</sup>|<script.*?</script>|<[^>]+>", re.DOTALL)
FOREIGN = re.compile(r"\s*\([^()]*[^\x00-\u024f\u2010-\u2030][^()]*\)")


def kyoto(repository: Repository) -> Iterator[Document]:
    files = [
        blob for blob in repository.files()
        if blob.path.endswith(".html") and "/" in blob.path and not blob.path.startswith(("jp/", "assets"))
    ]  # fmt: skip
    for path, text in repository.read(files):
        title = FOREIGN.sub("", path.rpartition("/")[2].removesuffix(".html"))
        page = Page(title)
        for kind, inner in ELEMENT.findall(text):
            line = " ".join(html.unescape(INSIDE.sub("", inner)).split())
            if "Japanese Wiki Corpus" in line:
                continue
            if kind.lower() != "p":
                page.heading(min(int(kind[1]), 4), FOREIGN.sub("", line))
            elif len(line) >= 60:  # "Nagatoshi NAWA": names are in capitals
                page.paragraph(re.sub(r"\b[A-Z]{4,}\b", lambda name: name.group(0).capitalize(), line))
        yield title, page.text()


# ---- OpenStax: CNXML

NOT_PROSE = frozenset("metadata exercise glossary table media figure footnote equation code".split())
FIGURE_MENTION = re.compile(r"\s*\((?:see|shown in|as in|e\.g\.)?\s*(?:and|,|;)*\s*\)", re.IGNORECASE)
DANGLING = re.compile(
    r"\b(?:in|see|of|and|from|to|by|In|See)\s+(?=[.,;)])|^\s*(?:shows|illustrates|lists|summarizes|depicts) "
)


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _flat(element: ElementTree.Element) -> str | None:
    """A paragraph's words, or None if there are formulas in it."""
    parts = [element.text]
    for child in element:
        if _name(child) in ("math", "equation"):
            return None
        if _name(child) not in NOT_PROSE and _name(child) not in ("list", "note"):
            inner = _flat(child)
            if inner is None:
                return None
            parts.append(inner)
        parts.append(child.tail)
    return " ".join("".join(part for part in parts if part).split())


def _walk(element: ElementTree.Element, depth: int, page: Page) -> None:
    for child in element:
        name = _name(child)
        if name in NOT_PROSE or "teacher" in child.get("class", ""):
            continue
        if name == "title":
            page.heading(depth, _flat(child) or "")
        elif name in ("para", "item"):
            line = _flat(child)
            if line is not None:
                line = FIGURE_MENTION.sub("", line)
                if len(line) > 60 and not DANGLING.search(line):
                    page.paragraph(line)
            _walk(child, depth, page)
        else:
            _walk(child, min(depth + (name in ("section", "note", "example")), 4), page)


def openstax(repository: Repository) -> Iterator[Document]:
    modules = [blob for blob in repository.files("modules/") if blob.path.endswith("index.cnxml")]
    for path, text in repository.read(modules):
        try:
            root = ElementTree.fromstring(text)
        except ElementTree.ParseError:
            continue
        title = next((_flat(child) or "" for child in root if _name(child) == "title"), path)
        page = Page(title)
        for child in root:
            if _name(child) == "content":
                _walk(child, 1, page)
        yield title, page.text()


# ---- Foreign Relations of the United States: TEI

PAPER = re.compile(r'<div\b[^>]*type="document"[^>]*>(.*?)(?=<div\b[^>]*type="document"|</body>)', re.DOTALL)
NOTE = re.compile(r"<note\b.*?</note>", re.DOTALL)
HEAD = re.compile(r"<head\b[^>]*>(.*?)</head>", re.DOTALL)
PARAGRAPH = re.compile(r"<p\b[^>]*>(.*?)</p>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


def _words(markup: str) -> str:
    return straight(" ".join(html.unescape(TAG.sub("", markup)).split()))


def frus(repository: Repository) -> Iterator[Document]:
    """Letters and papers: the head as a title, a blank line between paragraphs."""
    volumes = [blob for blob in repository.files("volumes/") if blob.path.endswith(".xml")]
    for path, text in repository.read(volumes):
        for match in PAPER.finditer(text):
            body = NOTE.sub("", match.group(1))
            head = HEAD.search(body)
            title = re.sub(r"^\d+\.\s*", "", _words(head.group(1))) if head else ""
            lines = [line for line in map(_words, PARAGRAPH.findall(body)) if len(line) > 40]
            lines = [line for line in lines if not line.startswith("[Omitted here")]
            page = Page(title)
            for line in lines:
                page.paragraph(line)
            yield f"{path.rpartition('/')[2].removesuffix('.xml')}: {title}", page.text()
