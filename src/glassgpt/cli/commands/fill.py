"""`glassgpt fill TEXT --model M`: the most likely tokens for the blanks of a text."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
from typing import Annotated

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.text import format_token, read_stdin, strip_final_newline, token_bytes
from glassgpt.errors import UserError


def command(
    text: Annotated[
        Positional[str],
        Flag("text with ___ (three underscores) for each token to fill in; - reads stdin", "TEXT"),
    ],
    *,
    k: Annotated[int, Flag("candidates for each blank", "N", short="-k")] = 5,
    model: Model = "default",
    device: Device = None,
    dtype: Dtype = None,
    json: Annotated[bool, Flag("print a JSON object")] = False,
) -> int:
    """Fill the blanks of a text. A model with attention 'bidirectional' sees the text on both sides of a
    blank; any other model guesses from the text before it and ranks its guesses by the text after it."""
    piped = text == "-"
    if piped:
        text = strip_final_newline(read_stdin())
    if not text:
        raise UserError(
            f"{'stdin' if piped else 'the text'} is empty. Type: glassgpt fill 'A text with ___ in it'"
        )
    gpt = load(model, device, dtype)
    filled = gpt.fill(text, k)
    if gpt.config.is_causal:
        terminal.note(f"{model} is causal: it guessed from what precedes a blank, and chose by what follows")
    if json:
        print(jsonlib.dumps({"model": model, **dataclasses.asdict(filled)}))
        return 0
    print(filled.text)
    unicode = terminal.supports_unicode(sys.stderr)
    for number, blank in enumerate(filled.blanks, start=1):
        probabilities = [p for _, p in blank.candidates]
        found = [
            f"{format_token(token_bytes(gpt, token), unicode)} {p:.1%}"
            for token, p in zip(blank.tokens, probabilities, strict=True)
        ]
        terminal.note(f"blank {number}: {'  '.join(found)}")
    return 0
