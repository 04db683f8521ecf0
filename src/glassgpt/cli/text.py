"""The text a command works on: an argument, or stdin."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from glassgpt.errors import UserError

if TYPE_CHECKING:
    from glassgpt.gpt import GPT


def read_stdin() -> str:
    """All of stdin, which must be UTF-8."""
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"stdin is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}. "
            "Convert it first: iconv -f LATIN1 -t UTF-8"
        ) from None


def text_or_stdin(text: str | None, verb: str) -> str:
    """The argument; stdin for `-`, or for no argument when something is piped in. Never nothing."""
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = read_stdin()
        if not text:
            raise UserError(f"stdin is empty. Pipe some text in, or type: glassgpt {verb} 'some text'")
    if not text:
        raise UserError(f"there is no text. Type: glassgpt {verb} 'some text'")
    return text


def without_last_newline(text: str) -> str:
    """`echo` ends a text with a newline that nobody meant; a model would go on after an empty line."""
    return text.removesuffix("\n").removesuffix("\r")


def visible(data: bytes, unicode: bool) -> str:
    """A token for the eye: a space and a newline become signs, half a character its bytes."""
    signs = {" ": "␣", "\n": "↵", "\t": "⇥"} if unicode else {"\n": "\\n", "\t": "\\t"}
    shown = []
    for char in data.decode("utf-8", "surrogateescape"):
        if char in signs:
            shown.append(signs[char])
        elif char.isprintable():
            shown.append(char)
        else:  # a control character, or one byte of a character that is not all here
            shown.append("".join(f"<{byte:02x}>" for byte in char.encode("utf-8", "surrogateescape")))
    return "".join(shown)


def checked_prompt(text: str | None, verb: str) -> str | None:
    """What a model is to continue: None lets it begin a document of its own; nothing at all is a mistake."""
    if text is None:
        return None
    if text == "-":
        text = without_last_newline(read_stdin())
        source = "stdin is empty"
    else:
        source = "the prompt is empty"
    if not text:
        raise UserError(
            f"{source}. Give some text, or leave it out and the model begins by itself: glassgpt {verb}"
        )
    return text


def given_ids(text: str | None, gpt: GPT, ids: bool, verb: str, allow_special: bool) -> list[int] | None:
    """The prompt in tokens: the numbers of `--ids`, or a text's. None lets the model begin by itself."""
    if text is None:
        return None
    if not ids:
        if gpt.tokenizer is None:
            raise UserError(
                f"{gpt.name} came without a tokenizer that can be read, so it takes token ids, not text. "
                f"Put its tokenizer.json beside the weights, or type: glassgpt {verb} --ids '1 2 3'"
            )
        return gpt.encode(text, allow_special)
    words = text.replace(",", " ").split()
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)]
    if wrong or not words:
        what = f"{wrong[0][:40]!r} is no token id" if wrong else "there are no token ids"
        raise UserError(f"{what}. Type whole numbers: glassgpt {verb} --ids '1 2 3'")
    return [int(word) for word in words]
