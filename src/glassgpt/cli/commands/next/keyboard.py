"""The interactive mode of `glassgpt next`: a key picks a token, the candidates are redrawn in place.

It is drawn on stderr; stdout gets only the finished text.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from glassgpt.cli import terminal
from glassgpt.cli.commands.next.candidates import make_table, next_candidates
from glassgpt.cli.text import format_token, token_bytes

if TYPE_CHECKING:
    from rich.text import Text

    from glassgpt.cli.commands.next.candidates import Candidates
    from glassgpt.gpt import GPT

SPECIAL_KEY = "special"  # an arrow, Delete, F5: a key that sends an escape sequence
ESCAPE_SECONDS = 0.05  # a sequence arrives at once; a person's next key comes later
KEYS = "1-9, 0 pick   Enter most likely   + type text   u undo   q quit"


class Keyboard:
    def __init__(self, gpt: GPT, ids: list[int]) -> None:
        self.gpt = gpt
        self.pieces: list[list[int]] = [ids]  # the prompt, then what each key added; undo drops the last
        self.message = ""
        self._drawn = 0  # lines on the screen

    @property
    def ids(self) -> list[int]:
        return [token_id for piece in self.pieces for token_id in piece]

    def run(self) -> int:
        """Run until q or the end of the input; then print the text on stdout."""
        with single_keys() as read_key:
            while True:
                candidates = next_candidates(self.gpt, self.ids)
                self.draw(candidates)
                key = read_key()
                if key in ("q", "\x04", ""):
                    break
                self.press(key, [token_id for token_id, _ in candidates])
        self.clear()
        sys.stdout.write(terminal.sanitize(self.gpt.decode(self.ids)) + "\n")
        return 0

    def press(self, key: str, candidates: list[int]) -> None:
        """Apply a key to the text."""
        self.message = ""
        if key in ("\r", "\n"):
            key = "1"
        if len(key) == 1 and key.isdigit():
            place = (int(key) - 1) % 10
            if place < len(candidates):
                self.pieces.append([candidates[place]])
            else:
                self.message = f"there are only {len(candidates)} candidates"
        elif key == "u":
            if len(self.pieces) > 1:
                self.pieces.pop()
            else:
                self.message = "nothing to undo"
        elif key.startswith("+"):
            added = self.gpt.encode(key[1:])
            if added:
                self.pieces.append(added)
        else:
            self.message = "unknown key" if key == SPECIAL_KEY else f"unknown key {key!r}"

    def draw(self, candidates: Candidates) -> None:
        screen = terminal.console(sys.stderr)
        with screen.capture() as captured:
            screen.print(self.text())
            screen.print()
            screen.print(make_table(self.gpt, candidates, numbered=True))
            screen.print()
            screen.print(self.message if self.message else KEYS, style="pick" if self.message else "quiet")
        frame = captured.get()
        self.clear()
        sys.stderr.write(frame)
        sys.stderr.flush()
        self._drawn = frame.count("\n")

    def text(self) -> Text:
        """The text so far: the prompt in bold, each pick in a token's color."""
        from rich.text import Text

        unicode = terminal.supports_unicode(sys.stderr)
        line = Text(terminal.sanitize(self.gpt.decode(self.pieces[0])), style="prompt", overflow="fold")
        for n, piece in enumerate(self.pieces[1:]):
            displayed = format_token(b"".join(token_bytes(self.gpt, i) for i in piece), unicode)
            line.append(
                displayed.replace("␣", " "), style=terminal.TOKEN_STYLES[n % len(terminal.TOKEN_STYLES)]
            )
        line.append("▏" if unicode else "|", style="quiet")
        return line

    def clear(self) -> None:
        """Move up to the first line drawn and clear everything below."""
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}A\r\x1b[J")
            sys.stderr.flush()
            self._drawn = 0


@contextlib.contextmanager
def single_keys() -> Iterator[Callable[[], str]]:
    """Yields `read_key()`: a key as soon as it is pressed; after `+`, a line."""
    try:
        import termios
        import tty
    except ModuleNotFoundError:  # Windows: read a line at a time
        yield lambda: sys.stdin.readline().rstrip("\n") or "\n"
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read_key() -> str:
        key = _read_character(descriptor)
        if key == "\x1b" and select.select([descriptor], [], [], ESCAPE_SECONDS)[0]:
            os.read(descriptor, 64)  # the rest of the sequence: that of Delete contains a 3
            return SPECIAL_KEY
        if key != "+":
            return key
        sys.stderr.write("+")
        sys.stderr.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)  # a line, with backspace and echo
        line = sys.stdin.readline().rstrip("\n")
        tty.setcbreak(descriptor, termios.TCSADRAIN)
        sys.stderr.write("\x1b[1A\r\x1b[J")  # what was typed is not part of the frame
        return "+" + line

    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)  # Ctrl-C still interrupts; keys typed ahead are not lost
        yield read_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _read_character(descriptor: int) -> str:
    """One character, without reading ahead as `sys.stdin` would: select() must see what follows."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while byte := os.read(descriptor, 1):
        if char := decoder.decode(byte):
            return char[-1]
    return ""
