"""`glassgpt next TEXT`: the phone keyboard. What may come next, and how likely each is."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parse import flag
from glassgpt.cli.text import checked_prompt, given_ids, visible
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.gpt import GPT

Candidates = list[tuple[int, float]]  # (token id, log-probability), likeliest first
ON_SCREEN = 10


def command(
    text: Annotated[
        Positional[str | None],
        flag("the text so far; - reads stdin; left out, a document begins", "[TEXT]", default=""),
    ] = None,
    *,
    k: Annotated[
        int | None,
        flag(
            "print this many candidates and leave; without it, a terminal lets you pick",
            "N",
            default="10",
            short="-k",
        ),
    ] = None,
    model: Model = "default",
    device: Device = None,
    dtype: Dtype = None,
    allow_special: Annotated[
        bool, flag("take <|endoftext|> in the text as that one token", default="")
    ] = False,
    ids: Annotated[bool, flag("the text is token ids; needs no tokenizer", default="")] = False,
    json: Annotated[bool, flag("one JSON object", default="")] = False,
) -> int:
    """Show the likeliest next tokens. On a terminal, pick one by its number and go on, as on a phone's
    keyboard; the text is printed when you leave with q."""
    text = checked_prompt(text, "next")
    picking = k is None and not json and sys.stdin.isatty() and terminal.is_terminal(sys.stdout)
    gpt = load(model, device, dtype)
    given = given_ids(text, gpt, ids, "next", allow_special)
    given = [] if given is None else given
    if k is not None:
        check_whole("-k", k, 1, gpt.config.vocab_size, f"the vocabulary of {model}")
    if picking and gpt.tokenizer is not None:
        from glassgpt.cli.keyboard import Keyboard

        return Keyboard(gpt, given).run()
    found = candidates(gpt, given, ON_SCREEN if k is None else k)
    if json:
        print(jsonlib.dumps({"model": model, "text": text, "next": as_json(gpt, found)}))
    else:
        terminal.show(listing(gpt, found, numbered=False))
    return 0


def candidates(gpt: GPT, ids: list[int], k: int = ON_SCREEN) -> Candidates:
    return gpt.next_ids(ids if ids else None, k)


def token_bytes(gpt: GPT, token_id: int) -> bytes:
    """What a token stands for; without a tokenizer its number."""
    from glassgpt.tokenizer import Tokenizer

    if gpt.tokenizer is None:
        return str(token_id).encode()
    assert isinstance(gpt.tokenizer, Tokenizer)
    return gpt.tokenizer.token_bytes(token_id)


def listing(gpt: GPT, found: Candidates, numbered: bool) -> Table:
    """A row for each candidate. Bars are drawn in proportion to the likeliest, so that the shape is seen."""
    from rich.text import Text

    unicode = terminal.speaks_unicode(sys.stdout)
    made = terminal.table("key" if numbered else ">#", "token", ">chance", "", ">id")
    most = math.exp(found[0][1])
    for place, (token_id, logprob) in enumerate(found, start=1):
        chance = math.exp(logprob)
        made.add_row(
            Text(f" {place % 10}" if numbered else str(place), style="pick" if numbered else "quiet"),
            Text(visible(token_bytes(gpt, token_id), unicode), style="title"),
            f"{chance:.2%}" if chance >= 0.0001 else f"{chance:.1e}",
            terminal.bar(chance / most, 30),
            Text(str(token_id), style="quiet"),
        )
    return made


def as_json(gpt: GPT, found: Candidates) -> list[dict[str, object]]:
    return [
        {
            "id": token_id,
            "text": token_bytes(gpt, token_id).decode("utf-8", "replace"),
            "bytes": token_bytes(gpt, token_id).hex(),
            "probability": math.exp(logprob),
            "logprob": logprob,
        }
        for token_id, logprob in found
    ]
