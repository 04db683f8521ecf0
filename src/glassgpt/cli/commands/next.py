"""`glassgpt next TEXT`: the most likely next tokens and their probabilities."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.text import encode_prompt, format_token, read_prompt
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.gpt import GPT

Candidates = list[tuple[int, float]]  # (token id, log-probability), most likely first
DEFAULT_K = 10
COLUMNS = ("token", ">probability", "", ">id")  # after the place
BAR = 30  # characters


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
    interactive = k is None and not json and sys.stdin.isatty() and terminal.is_terminal(sys.stdout)
    gpt = load(model, device, dtype)
    prompt = encode_prompt(text, gpt, ids, "next", allow_special)
    prompt = [] if prompt is None else prompt
    if k is not None:
        check_whole("-k", k, 1, gpt.config.vocab_size, f"the vocabulary of {model}")
    if interactive and gpt.tokenizer is not None:
        from glassgpt.cli.keyboard import Keyboard

        return Keyboard(gpt, prompt).run()
    candidates = next_candidates(gpt, prompt, DEFAULT_K if k is None else k)
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


def next_candidates(gpt: GPT, ids: list[int], k: int = DEFAULT_K) -> Candidates:
    return gpt.next_ids(ids if ids else None, k)


def token_bytes(gpt: GPT, token_id: int) -> bytes:
    """A token's bytes; without a tokenizer, its id in digits."""
    from glassgpt.tokenizer import Tokenizer

    if gpt.tokenizer is None:
        return str(token_id).encode()
    assert isinstance(gpt.tokenizer, Tokenizer)
    return gpt.tokenizer.token_bytes(token_id)


def lines_of(gpt: GPT, candidates: Candidates) -> Iterator[tuple[str, str, str, str, float]]:
    """Place, token, probability and id of each candidate, and its probability over that of the first."""
    unicode = terminal.supports_unicode(sys.stdout)
    highest = math.exp(candidates[0][1])
    for place, (token_id, logprob) in enumerate(candidates, start=1):
        probability = math.exp(logprob)
        percent = f"{probability:.2%}" if probability >= 0.0001 else f"{probability:.1e}"
        token = format_token(token_bytes(gpt, token_id), unicode)
        yield str(place), token, percent, str(token_id), probability / highest


def make_table(gpt: GPT, candidates: Candidates, numbered: bool) -> Table:
    """A row for each candidate."""
    from rich.text import Text

    table = terminal.table("key" if numbered else ">#", *COLUMNS)
    for place, token, probability, token_id, fraction in lines_of(gpt, candidates):
        table.add_row(
            Text(f" {int(place) % 10}", style="pick") if numbered else Text(place, style="quiet"),
            Text(token, style="title"),
            probability,
            terminal.bar(fraction, BAR),
            Text(token_id, style="quiet"),
        )
    return table


def to_json(gpt: GPT, candidates: Candidates) -> list[dict[str, object]]:
    return [
        {
            "id": token_id,
            "text": token_bytes(gpt, token_id).decode("utf-8", "replace"),
            "bytes": token_bytes(gpt, token_id).hex(),
            "probability": math.exp(logprob),
            "logprob": logprob,
        }
        for token_id, logprob in candidates
    ]
