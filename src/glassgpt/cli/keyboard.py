"""The keyboard of `glassgpt next`: one key picks a token, the candidates are drawn anew in place.

It is drawn on stderr; stdout gets the finished text alone.
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
from glassgpt.cli.commands.next import candidates, listing, token_bytes
from glassgpt.cli.text import visible

if TYPE_CHECKING:
    from rich.text import Text

    from glassgpt.gpt import GPT

OTHER_KEY = "that"  # an arrow, Delete, F5: a key of several codes
ESCAPE_SECONDS = 0.05  # the codes of one key come together; a person's next key comes later
KEYS = "1-9, 0 pick   Enter the likeliest   + your own words   u undo   q done"


class Keyboard:
    def __init__(self, gpt: GPT, ids: list[int]) -> None:
        self.gpt = gpt
        self.pieces: list[list[int]] = [ids]  # the text given, then what each key added: undo drops the last
        self.message = ""
        self._drawn = 0  # lines on the screen to be drawn over

    @property
    def ids(self) -> list[int]:
        return [token_id for piece in self.pieces for token_id in piece]

    def run(self) -> int:
        """Until q (or the end of the input); then the text on stdout."""
        with single_keys() as read_key:
            while True:
                found = candidates(self.gpt, self.ids)
                self.draw(found)
                key = read_key()
                if key in ("q", "\x04", ""):
                    break
                self.press(key, [token_id for token_id, _ in found])
        self.wipe()
        sys.stdout.write(terminal.harmless(self.gpt.decode(self.ids)) + "\n")
        return 0

    def press(self, key: str, found: list[int]) -> None:
        """What a key does to the text."""
        self.message = ""
        if key in ("\r", "\n"):
            key = "1"
        if len(key) == 1 and key.isdigit():
            place = (int(key) - 1) % 10
            if place < len(found):
                self.pieces.append([found[place]])
            else:
                self.message = f"there are only {len(found)} candidates"
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
            self.message = f"{key if key == OTHER_KEY else repr(key)} is no key here"

    def draw(self, found: list[tuple[int, float]]) -> None:
        screen = terminal.console(sys.stderr)
        with screen.capture() as captured:
            screen.print(self.text())
            screen.print()
            screen.print(listing(self.gpt, found, numbered=True))
            screen.print()
            screen.print(self.message if self.message else KEYS, style="pick" if self.message else "quiet")
        picture = captured.get()
        self.wipe()
        sys.stderr.write(picture)
        sys.stderr.flush()
        self._drawn = picture.count("\n")

    def text(self) -> Text:
        """What stands so far: the text given in bold, each pick in the colour of a token."""
        from rich.text import Text

        unicode = terminal.speaks_unicode(sys.stderr)
        line = Text(terminal.harmless(self.gpt.decode(self.pieces[0])), style="prompt", overflow="fold")
        for n, piece in enumerate(self.pieces[1:]):
            shown = visible(b"".join(token_bytes(self.gpt, i) for i in piece), unicode)
            line.append(shown.replace("␣", " "), style=terminal.TOKEN_STYLES[n % len(terminal.TOKEN_STYLES)])
        line.append("▏" if unicode else "|", style="quiet")
        return line

    def wipe(self) -> None:
        """Go back up to where the picture began and clear from there."""
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}A\r\x1b[J")
            sys.stderr.flush()
            self._drawn = 0


@contextlib.contextmanager
def single_keys() -> Iterator[Callable[[], str]]:
    """Yields `read_key()`: one key as soon as it is pressed; after `+`, a whole line."""
    try:
        import termios
        import tty
    except ModuleNotFoundError:  # Windows: a line at a time does as well
        yield lambda: sys.stdin.readline().rstrip("\n") or "\n"
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read_key() -> str:
        key = _character(descriptor)
        if key == "\x1b" and select.select([descriptor], [], [], ESCAPE_SECONDS)[0]:
            os.read(descriptor, 64)  # the rest of an arrow or of Delete, whose code has a 3 in it
            return OTHER_KEY
        if key != "+":
            return key
        sys.stderr.write("+")
        sys.stderr.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)  # a line, with its backspace and echo
        line = sys.stdin.readline().rstrip("\n")
        tty.setcbreak(descriptor, termios.TCSADRAIN)
        sys.stderr.write("\x1b[1A\r\x1b[J")  # what was typed is no part of the picture
        return "+" + line

    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)  # Ctrl-C still interrupts; keys typed ahead are kept
        yield read_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _character(descriptor: int) -> str:
    """One character, without reading ahead (as `sys.stdin` would): what follows is still there to be seen."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while byte := os.read(descriptor, 1):
        if char := decoder.decode(byte):
            return char[-1]
    return ""
