"""A page of an encyclopedia as the model reads it: `= Title =`, `== Heading ==`, one paragraph a line."""

from __future__ import annotations

import re

LONG = 80  # a line this long is a paragraph even without a full stop
# Sections that are lists, whatever the article.
LISTS = frozenset(
    part.strip()
    for part in """references|external links|see also|notes|further reading|footnotes|bibliography|sources|
    citations|notes and references|references and notes|gallery|discography|filmography|publications|
    works cited|selected bibliography|awards|awards and nominations|track listing|personnel|charts|
    external link|literature|general references|contents|navigation menu|chart positions|release history|
    certifications|cast|explanatory notes|selected works|works|roster|standings|squad|results|credits|
    episodes|key terms|learning objectives|review questions|critical thinking questions|for further study|
    further research|multiple choice|short answer|section quiz|chapter outline|suggested reading|
    recommended resources""".split("|")
)
STRAIGHT = {
    "“": '"', "”": '"', "„": '"', "‟": '"', "‘": "'", "’": "'", "‚": "'", "‛": "'", "\u00a0": " ",
    "\u00ad": "", "\u200b": "", "\u200e": "", "\u200f": "", "\ufeff": "", "\ufffd": "",
}  # fmt: skip
MARK = re.compile(
    r"\[(?:\d{1,3}|[a-z]{1,2}|[ivx]{1,5}|(?:note|nb|n|a|quote|ref|lower-alpha) ?\d+|edit|update|sic|"
    r"(?:citation|page|verification|year|clarification|dubious|better source|full citation|original research|"
    r"failed verification|not in citation|specify|attribution|according|by|neutrality|non-primary|vague|who|"
    r"when|which|where|why|weasel|unreliable)[^\]\n]{0,40})\]",
    re.IGNORECASE,
)
EMPTY_PARENTHESES = re.compile(r"\s*[(\[]\s*[;,:/–-]*\s*[)\]]")
NEAR = re.compile(r"[(\[][\s;,:/)\]–-]")
AFTER_PARENTHESIS = re.compile(r"\(\s*[;,:]\s*(?:[;,:]\s*)*")
BEFORE_STOP = re.compile(r" +([,.;:!?)])(?!\.)")
DOUBLE_STOP = re.compile(r"([,;])(?:\s*[,;])+")
REFERENCE = re.compile(r"ISBN|\bdoi:|Retrieved (?:on )?[\dA-Z]|ISSN|OCLC|https?://|www\.|^\^|Archived from")


def straight(text: str) -> str:
    """Straight quotes, ordinary spaces. Replacing sign by sign is ten times faster than str.translate."""
    if not text.isascii():
        for sign, plain in STRAIGHT.items():
            text = text.replace(sign, plain)
    return text


def tidy(line: str) -> str:
    """One line: straight quotes, single spaces, no footnote marks, no empty parentheses."""
    line = straight(line)
    if "[" in line:
        line = MARK.sub("", line)
    line = " ".join(line.split())
    if "(" in line or "[" in line:
        line = AFTER_PARENTHESIS.sub("(", EMPTY_PARENTHESES.sub("", line)) if NEAR.search(line) else line
    if (
        " ," in line
        or " ." in line
        or " ;" in line
        or " :" in line
        or " )" in line
        or " ?" in line
        or " !" in line
    ):
        line = BEFORE_STOP.sub(r"\1", line)
    if ",," in line or ", ," in line or "; ;" in line or ",;" in line or ", ;" in line:
        line = DOUBLE_STOP.sub(r"\1", line)
    return line.strip()


def is_sentence(line: str) -> bool:
    return len(line) >= LONG or line.endswith((".", "!", "?", '"', ")", ".'"))


class Page:
    """Collects headings and paragraphs. A heading without text is left out, a list's section wholly."""

    def __init__(self, title: str) -> None:
        self.title = tidy(title)
        self._parts = [f"= {self.title} =\n\n"] if self.title else []
        self._waiting: list[tuple[int, str]] = []  # headings whose text has not come yet
        self._skipped = 0  # depth of the section that is being left out

    def heading(self, depth: int, text: str) -> None:
        heading = tidy(text).strip(" :=")
        if self._skipped and depth > self._skipped:
            return
        self._skipped = depth if heading.lower().strip(" .:") in LISTS else 0
        self._waiting = [waiting for waiting in self._waiting if waiting[0] < depth]
        if heading and not self._skipped:
            self._waiting.append((depth, heading))

    def nested_heading(self, text: str) -> None:
        """A heading of unknown depth: below the one before it, if that one has no text of its own."""
        self.heading(min(4, max([depth + 1 for depth, _ in self._waiting], default=2)), text)

    def paragraph(self, text: str) -> None:
        if self._skipped:
            return
        line = tidy(text)
        if not line or (len(line) < 500 and REFERENCE.search(line)):
            return
        if self._waiting and len(self._parts) > 1:
            self._parts.append("\n")
        self._parts += [f"{'=' * depth} {heading} {'=' * depth}\n\n" for depth, heading in self._waiting]
        self._waiting = []
        self._parts.append(f"{line}\n")

    def text(self) -> str:
        return "".join(self._parts).strip("\n")
