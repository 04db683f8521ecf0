"""Readers of modern plain prose: a journal's summaries for everybody, agencies' articles, recipes."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator

from corpus.page import Page
from corpus.repository import Blob, Repository

Document = tuple[str, str]

# ---- eLife: JATS. Of a study its summaries and introduction, of an essay about one the whole.

VERSION = re.compile(r"elife-(\d+)-v(\d+)\.xml$")
KIND = re.compile(r'article-type="([^"]+)"')
JATS_TITLE = re.compile(r"<article-title>(.*?)</article-title>", re.DOTALL)
ABSTRACT = re.compile(r"<abstract\b[^>]*>(.*?)</abstract>", re.DOTALL)
INTRODUCTION = re.compile(r'<sec\b[^>]*sec-type="intro[^>]*>(.*?)</sec>', re.DOTALL)
BODY = re.compile(r"<body>(.*?)</body>", re.DOTALL)
NOT_PROSE = re.compile(
    r"<(fig|fig-group|table-wrap|disp-formula|inline-formula|media|boxed-text|object-id|fn)\b.*?</\1>|"
    r"<xref\b[^>]*ref-type=\"(?:bibr|fig|table|video|supplementary-material)\".*?</xref>",
    re.DOTALL,
)
PART = re.compile(r"<(title|p)\b[^>]*>(.*?)</\1>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
DIGEST = re.compile(r"(?:eLife digest|Plain language summary|DOI:).{0,60}$")
DANGLING = re.compile(
    r"\(\s*(?:see also|see|e\.g\.|for reviews?,?(?: see)?|reviewed in|but see|[;,&]|and|\s)*\s*\)",
    re.IGNORECASE,
)
ESSAYS = ("article-commentary", "discussion", "editorial", "review-article")


def _words(markup: str) -> str:
    return " ".join(html.unescape(TAG.sub("", markup)).split())


def _parts(markup: str, depth: int, page: Page) -> None:
    for kind, inner in PART.findall(NOT_PROSE.sub("", markup)):
        line = DANGLING.sub("", _words(inner))
        if kind == "title":
            page.heading(depth, line)
        elif len(line) > 80 and not DIGEST.match(line):
            page.paragraph(line)


def elife(repository: Repository) -> Iterator[Document]:
    newest: dict[str, tuple[int, Blob]] = {}
    for blob in repository.files("articles/"):
        match = VERSION.search(blob.path)
        if match:
            number, version = match.group(1), int(match.group(2))
            newest[number] = max(newest.get(number, (0, blob)), (version, blob))
    for path, text in repository.read(blob for _, (_, blob) in sorted(newest.items())):
        number = path.rpartition("/")[2].split("-")[
            1
        ]  # names the authors: https://doi.org/10.7554/eLife.NUMBER
        kind, found = KIND.search(text), JATS_TITLE.search(text)
        if kind is None or found is None:
            continue
        title = _words(found.group(1))
        page = Page(title)
        if kind.group(1) == "research-article":
            for abstract in ABSTRACT.findall(text):
                _parts(abstract, 2, page)
            introduction = INTRODUCTION.search(text)
            if introduction:
                _parts(introduction.group(1), 2, page)
        elif kind.group(1) in ESSAYS:
            body = BODY.search(text)
            _parts(body.group(1) if body else "", 2, page)
        yield f"eLife {number}: {title}", page.text()


# ---- Markdown

FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
FRONT_TITLE = re.compile(r"^title:\s*(.+)$", re.MULTILINE)
NOT_TEXT = re.compile(
    r"```.*?```|<!--.*?-->|\{\{.*?\}\}|\{%.*?%\}|<(script|style|table|svg|figure|iframe)\b.*?</\1>|!\[[^\]]*\]\([^)]*\)",
    re.DOTALL,
)
LINK = re.compile(r"\[([^\[\]]*)\](?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\])")
MARKS = re.compile(r"(?<!\w)[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}(?!\w)|`|\{:[^}]*\}|\[\^[^\]]*\]")
PICTOGRAM = re.compile(r"[\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]\s*")
ITEM = re.compile(r"(?:[-*+]|\d+[.)])\s+")


def blocks(text: str) -> Iterator[str]:
    """Paragraphs and list items, their lines joined."""
    block: list[str] = []
    for line in [*text.split("\n"), ""]:
        stripped = line.strip()
        if not stripped or ITEM.match(stripped) or stripped.startswith(("#", "|")):
            if block:
                yield " ".join(block)
            block = []
        if stripped.startswith("#"):
            yield stripped
        elif stripped and not stripped.startswith(("|", "---", "===", ":::")):
            block.append(stripped.lstrip("> ") if stripped.startswith(">") else stripped)
    if block:
        yield " ".join(block)


def markdown_text(text: str, name: str) -> Document:
    front = FRONT.match(text)
    found = FRONT_TITLE.search(front.group(1)) if front else None
    title = html.unescape(found.group(1).strip().strip("'\"")) if found else ""
    body = NOT_TEXT.sub("", text[front.end() :] if front else text)
    body = MARKS.sub("", TAG.sub("", html.unescape(LINK.sub(r"\1", LINK.sub(r"\1", body)))))
    page: Page | None = Page(title) if title else None
    for block in blocks(PICTOGRAM.sub("", body)):
        heading = re.match(r"(#+)\s*(.*?)\s*#*$", block)
        if heading and page is None:
            title = heading.group(2)
            page = Page(title)
        elif heading and page is not None:
            page.heading(max(2, min(len(heading.group(1)), 4)), heading.group(2))
        else:
            if page is None:
                title = name
                page = Page(title)
            page.paragraph(block)
    return title, page.text() if page is not None else ""


def markdown(*folders: str, history: bool = False) -> Callable[[Repository], Iterator[Document]]:
    """All .md files of these folders, of the commit or (`history`) the longest version each ever had."""

    def read(repository: Repository) -> Iterator[Document]:
        for folder in folders:
            files = repository.longest_versions(folder) if history else repository.files(folder)
            for path, text in repository.read(blob for blob in files if blob.path.endswith(".md")):
                name = path.rpartition("/")[2].removesuffix(".md").replace("-", " ").capitalize()
                yield markdown_text(text, name)

    return read
