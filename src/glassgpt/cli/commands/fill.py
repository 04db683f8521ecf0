"""`glassgpt fill TEXT --model M`: the likeliest tokens for the blanks of a text."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from typing import Annotated

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.options import Positional, flag
from glassgpt.cli.text import read_prompt


def command(
    text: Annotated[
        Positional[str],
        flag("text with ___ (three underscores) for each token to fill in; - reads stdin", "TEXT"),
    ],
    *,
    k: Annotated[int, flag("candidates for each blank", "N", short="-k")] = 5,
    model: Model = "default",
    device: Device = None,
    dtype: Dtype = None,
    json: Annotated[bool, flag("print a JSON object", default="")] = False,
) -> int:
    """Fill the blanks of a text. A model with attention 'bidirectional' sees what stands on both sides of a
    blank; any other guesses from what stands before it."""
    text = read_prompt(text, "fill") or ""
    gpt = load(model, device, dtype)
    filled = gpt.fill(text, k)
    if gpt.config.is_causal:
        terminal.note(f"{model} is causal: it guessed each blank from what precedes it")
    if json:
        print(jsonlib.dumps({"model": model, **dataclasses.asdict(filled)}))
        return 0
    print(filled.text)
    for number, blank in enumerate(filled.blanks, start=1):
        found = ", ".join(f"{text!r} {p:.1%}" for text, p in blank.candidates)
        terminal.note(f"blank {number}: {terminal.sanitize(found)}")
    return 0
