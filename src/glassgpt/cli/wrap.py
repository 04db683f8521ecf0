"""Word wrap for streamed text: a terminal would break lines in the middle of words."""

from __future__ import annotations

import re


class NoWrap:
    """Leaves the text alone."""

    def push(self, piece: str) -> str:
        return piece

    def flush(self) -> str:
        return ""


class WordWrap:
    """Breaks lines of at most `width` cells between words. A word is held back until it is complete."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._column = 0
        self._gap = ""  # the spaces before the word
        self._word = ""

    def push(self, piece: str) -> str:
        """The text that can be written now."""
        out = []
        for part in re.findall(r"\n|[ \t]+|[^ \t\n]+", piece):
            if part == "\n":
                out.append(self.flush() + "\n")
                self._column = 0
            elif part.isspace() and part[0] in " \t":
                out.append(self.flush())
                self._gap = part.expandtabs(8)
            else:
                self._word += part
                if self._cells(self._gap + self._word) > self.width:  # or a script without spaces
                    out.append(self.flush())
        return "".join(out)

    def flush(self) -> str:
        """The text held back so far: the word is complete."""
        if not self._word:  # trailing spaces only show if they overflow
            gap, self._gap = self._gap, ""
            return self._put(gap) if self._column + len(gap) <= self.width else ""
        gap, word, self._gap, self._word = self._gap, self._word, "", ""
        if self._column + self._cells(gap + word) <= self.width or not self._column or not gap:
            return self._put(gap + word)
        self._column = 0
        return "\n" + self._put(word)

    def _put(self, text: str) -> str:
        cells = self._column + self._cells(text)
        # The terminal breaks a word that is longer than a line; the next word follows where it ends.
        self._column = cells if cells <= self.width else cells % self.width
        return text

    def _cells(self, text: str) -> int:
        if text.isascii():
            return len(text)
        from rich.cells import cell_len

        return cell_len(text)
