"""`glassgpt tokens TEXT`: the tokens of a text, and the merges behind them."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import terminal
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.text import format_token, read_text

if TYPE_CHECKING:
    from rich.text import Text

    from glassgpt.tokenizer import Tokenizer, WordMerges

FEW = 2000  # most tokens that are colored: color takes time


def command(
    text: Annotated[Positional[str | None], Flag("the text; - reads stdin", "[TEXT]")] = None,
    *,
    model: Annotated[str, Flag("a model, or a tokenizer file or folder", "MODEL")] = "default",
    merges: Annotated[bool, Flag("show every merge of every word")] = False,
    ids: Annotated[bool, Flag("print only the ids, on one line")] = False,
    allow_special: Annotated[bool, Flag("encode <|endoftext|> in the text as the special token")] = False,
    json: Annotated[bool, Flag("print one JSON object")] = False,
) -> int:
    """Tokenize a text: print the ids and bytes of its tokens, and the merges that made them."""
    text = read_text(text, "tokens")
    from glassgpt.weights import load_tokenizer

    tokenizer = load_tokenizer(model)
    words = tokenizer.explain(text, allow_special) if merges else None
    found = tokenizer.encode(text, allow_special)
    if json:
        print(jsonlib.dumps(as_json(tokenizer, text, found, words)))
    elif ids:
        print(*found)
    elif words is not None:
        for word in words:
            terminal.show(steps(word))
    else:
        show_tokens(tokenizer, found)
        n_bytes = len(text.encode("utf-8"))
        terminal.note(
            f"{count(len(found), 'token')} for {count(n_bytes, 'byte')} of {count(len(text), 'character')}: "
            f"{n_bytes / len(found):.2f} bytes per token"
        )
    return 0


def show_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    """The text in alternating colors on a terminal, and a line for each token."""
    unicode = terminal.supports_unicode(sys.stdout)
    pieces = [format_token(tokenizer.token_bytes(i), unicode) for i in ids]
    colored = terminal.is_terminal(sys.stdout) and len(ids) <= FEW
    if colored:
        terminal.show(color_tokens(pieces), "")
    hexes = [tokenizer.token_bytes(i).hex(" ") for i in ids]
    width = max(5, min(47, max(map(len, hexes))))
    slots = max(2, len(str(len(ids) - 1)))
    head = f"{'#':>{slots}}  {'id':>6}  {'bytes':<{width}}  token"
    if colored:
        from rich.text import Text

        page = Text()
        page.append(head + "\n", style="head")
        for n, (token_id, hexed, piece) in enumerate(zip(ids, hexes, pieces, strict=True)):
            page.append(f"{n:>{slots}}  ", style="quiet")
            page.append(f"{token_id:>6}  ", style="number")
            page.append(f"{hexed:<{width}}  ")
            page.append(piece, style=terminal.TOKEN_STYLES[n % len(terminal.TOKEN_STYLES)])
            page.append("\n" if n + 1 < len(ids) else "")
        terminal.show(page)
    else:
        rows = (
            f"{n:>{slots}}  {token_id:>6}  {hexed:<{width}}  {piece}\n"
            for n, (token_id, hexed, piece) in enumerate(zip(ids, hexes, pieces, strict=True))
        )
        sys.stdout.write(head + "\n")
        sys.stdout.writelines(rows)


def color_tokens(pieces: Sequence[str]) -> Text:
    from rich.text import Text

    line = Text()
    colored = terminal.supports_color(sys.stdout)  # then its color shows a space
    for n, piece in enumerate(pieces):
        displayed = piece.replace("␣", " ") if colored else piece
        line.append(displayed, style=terminal.TOKEN_STYLES[n % len(terminal.TOKEN_STYLES)])
    return line


def steps(word: WordMerges) -> Text:
    """A word from its bytes to its tokens: the pieces after each merge, and on the right the merged pair."""
    from rich.text import Text

    unicode = terminal.supports_unicode(sys.stdout)
    states = [word.start, *(merge.pieces for merge in word.merges)]
    lines = ["|".join(format_token(piece, unicode) for piece in pieces) for pieces in states]
    width = max(map(len, lines))
    page = Text()
    for n, (pieces, line) in enumerate(zip(states, lines, strict=True)):
        for i, piece in enumerate(pieces):
            last = n == len(states) - 1
            page.append("|" if i else "", style="quiet")
            page.append(format_token(piece, unicode), style=terminal.TOKEN_STYLES[i % 5] if last else "")
        page.append(" " * (width - len(line) + 2))
        if n:
            merge = word.merges[n - 1]
            pair = f"{format_token(merge.left, unicode)} + {format_token(merge.right, unicode)}"
            page.append(f"{pair}  (merge {merge.rank + 1:,})", style="quiet")
        else:
            page.append(
                count(len(word.start), "byte") if len(word.start[0]) == 1 else "special", style="quiet"
            )
        page.append("\n")
    page.append("ids " + " ".join(map(str, word.ids)) + "\n", style="number")
    return page


def as_json(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], words: list[WordMerges] | None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "text": text,
        "ids": list(ids),
        "tokens": [
            {"id": i, "bytes": data.hex(), "text": data.decode("utf-8", "replace")}
            for i, data in ((i, tokenizer.token_bytes(i)) for i in ids)
        ],
    }
    if words is not None:
        made["words"] = list(_words_as_json(words))
    return made


def _words_as_json(words: list[WordMerges]) -> Iterator[dict[str, Any]]:
    for word in words:
        merges = [
            {
                "rank": merge.rank,
                "left": merge.left.hex(),
                "right": merge.right.hex(),
                "pieces": [piece.hex() for piece in merge.pieces],
            }
            for merge in word.merges
        ]
        start = [piece.hex() for piece in word.start]
        yield {"text": word.text, "start": start, "merges": merges, "ids": list(word.ids)}


def count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
