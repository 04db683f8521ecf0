"""`glassgpt next TEXT`: the most likely next tokens and their probabilities."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated

from glassgpt.cli import terminal
from glassgpt.cli.commands.next.candidates import (
    BAR,
    COLUMNS,
    DEFAULT_K,
    lines_of,
    make_table,
    next_candidates,
    to_json,
)
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.text import encode_prompt, read_prompt
from glassgpt.ranges import check_number, check_whole


def command(
    text: Annotated[
        Positional[str | None],
        Flag("the text so far; - reads stdin; omit it to start a new document", "[TEXT]"),
    ] = None,
    *,
    k: Annotated[
        int | None,
        Flag(
            "print this many candidates and exit; without it, pick interactively on a terminal",
            "N",
            default="10",
            short="-k",
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        Flag(
            "print only those at least this probable, relative to the most likely: 0 to 1",
            "X",
            default="none",
        ),
    ] = None,
    model: Model = "default",
    device: Device = None,
    dtype: Dtype = None,
    allow_special: Annotated[bool, Flag("treat <|endoftext|> in the text as the special token")] = False,
    ids: Annotated[bool, Flag("TEXT is token ids; no tokenizer needed")] = False,
    json: Annotated[bool, Flag("print a JSON object")] = False,
) -> int:
    """Show the most likely next tokens. On a terminal, press a number to pick one and continue, as on a
    phone's keyboard; q quits and prints the text."""
    text = read_prompt(text, "next")
    interactive = (
        k is None and min_p is None and not json and sys.stdin.isatty() and terminal.is_terminal(sys.stdout)
    )
    gpt = load(model, device, dtype)
    prompt = encode_prompt(text, gpt, ids, "next", allow_special)
    prompt = [] if prompt is None else prompt
    if k is not None:
        check_whole("-k", k, 1, gpt.config.vocab_size, f"the vocabulary of {model}")
    if interactive and gpt.tokenizer is not None:
        from glassgpt.cli.commands.next.keyboard import Keyboard

        return Keyboard(gpt, prompt).run()
    if min_p is not None:
        check_number("--min-p", min_p, 0, 1, "0.05 is usual", above=True)
    candidates = next_candidates(gpt, prompt, DEFAULT_K if k is None else k, min_p, k is not None)
    if json:
        print(jsonlib.dumps({"model": model, "text": text, "next": to_json(gpt, candidates)}))
    elif terminal.is_terminal(sys.stdout):
        terminal.show(make_table(gpt, candidates, numbered=False))
    else:
        rows = [
            [place, token, probability, terminal.plain_bar(fraction, BAR), token_id]
            for place, token, probability, token_id, fraction in lines_of(gpt, candidates)
        ]
        terminal.write_plain_table([">#", *COLUMNS], rows)
    return 0
