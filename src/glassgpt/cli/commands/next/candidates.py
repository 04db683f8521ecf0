"""The candidates for the next token, and how `glassgpt next` shows them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from glassgpt.cli import terminal
from glassgpt.cli.text import format_token, token_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.gpt import GPT

Candidates = list[tuple[int, float]]  # (token id, log-probability), most likely first
DEFAULT_K = 10
COLUMNS = ("token", ">probability", "", ">id")  # after the place
BAR = 30  # characters


def next_candidates(
    gpt: GPT, ids: list[int], k: int = DEFAULT_K, min_p: float | None = None, limited: bool = True
) -> Candidates:
    """The k most likely; with `min_p` only those at least so probable, relative to the first, and all of them
    unless the number is `limited`."""
    if min_p is None:
        return gpt.next_ids(ids if ids else None, k)
    least = math.log(min_p)
    while True:
        found = gpt.next_ids(ids if ids else None, k)
        fitting = [each for each in found if each[1] - found[0][1] >= least]
        if limited or len(fitting) < len(found) or k >= gpt.config.vocab_size:
            return fitting
        k = min(4 * k, gpt.config.vocab_size)


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
