"""The text a command works on: an argument, or stdin."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from glassgpt.errors import UserError, iconv_advice

if TYPE_CHECKING:
    from glassgpt.gpt import GPT


def read_stdin() -> str:
    """All of stdin, which must be UTF-8."""
    from glassgpt.files.text import read_stream, refuse_utf16

    raw = read_stream(sys.stdin.buffer, "stdin")
    refuse_utf16(raw, "stdin")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"stdin is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}. {iconv_advice()}"
        ) from None


def read_text(text: str | None, command: str) -> str:
    """The argument; or stdin, for `-` or if the argument is missing and stdin is piped. Never empty."""
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = read_stdin()
        if not text:
            raise UserError(f"stdin is empty. Pipe some text in, or type: glassgpt {command} 'some text'")
    if not text:
        raise UserError(f"the text is empty. Type: glassgpt {command} 'some text'")
    return text


def read_prompt(text: str | None, command: str) -> str | None:
    """The prompt; `-` reads stdin. None starts a new document; an empty prompt is an error."""
    if text is None:
        return None
    if text == "-":
        text = strip_final_newline(read_stdin())
        problem = "stdin is empty"
    else:
        problem = "the prompt is empty"
    if not text:
        raise UserError(
            f"{problem}. Give some text, or leave it out to start a new document: glassgpt {command}"
        )
    return text


def strip_final_newline(text: str) -> str:
    """`echo` adds a newline that nobody meant; the model would continue after an empty line."""
    return text.removesuffix("\n").removesuffix("\r")


def encode_prompt(
    text: str | None, gpt: GPT, ids: bool, command: str, allow_special: bool
) -> list[int] | None:
    """The prompt's token ids, which is what the prompt is with `ids`. None starts a new document."""
    if text is None:
        return None
    if not ids:
        if gpt.tokenizer is None:
            raise UserError(
                f"{gpt.name} was loaded without a tokenizer, so it takes token ids, not text. Put its "
                f"tokenizer.json next to the weights, or type: glassgpt {command} --ids '1 2 3'"
            )
        return gpt.encode(text, allow_special)
    from glassgpt.generate.prompt import parse_ids

    example = f"glassgpt {command} --ids '1 2 3'"
    token_ids = parse_ids(text, example)
    if not token_ids:
        raise UserError(f"there are no token ids. Type whole numbers: {example}")
    return token_ids


def token_bytes(gpt: GPT, token_id: int) -> bytes:
    """A token's bytes; without a tokenizer, its id in digits."""
    from glassgpt.tokenizer import Tokenizer

    if gpt.tokenizer is None:
        return str(token_id).encode()
    assert isinstance(gpt.tokenizer, Tokenizer)
    return gpt.tokenizer.token_bytes(token_id)


def format_token(data: bytes, unicode: bool) -> str:
    """A token made visible: signs for spaces and newlines, hex for the bytes of an incomplete character."""
    signs = {" ": "␣", "\n": "↵", "\t": "⇥"} if unicode else {"\n": "\\n", "\t": "\\t"}
    displayed = []
    for char in data.decode("utf-8", "surrogateescape"):
        if char in signs:
            displayed.append(signs[char])
        elif char.isprintable():
            displayed.append(char)
        else:  # a control character, or one byte of an incomplete character
            displayed.append("".join(f"<{byte:02x}>" for byte in char.encode("utf-8", "surrogateescape")))
    return "".join(displayed)
