"""`glassgpt heads MODEL`: what the attention heads do."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import Device, Dtype, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.task_records import check_file, read_whole
from glassgpt.ranges import check_whole

SAYS = {
    "previous_token": "attends to the token before",
    "duplicate_token": "attends to an earlier copy of the token",
    "induction": "attends to the token after an earlier copy",
    "first_token": "attends to the first token",
    "current_token": "attends to the token itself",
    "copying": "writes the tokens that it reads",
}


def command(
    model: Annotated[
        Positional[str], Flag("a name (default, tiny, gpt2, owner/name), a folder or a file", "[MODEL]")
    ] = "default",
    *,
    k: Annotated[int, Flag("heads of each kind", "N", short="-k")] = 5,
    text: Annotated[
        str | None, Flag("measure on this text file, not on repeated random tokens", "FILE")
    ] = None,
    length: Annotated[int, Flag("random tokens, which are then repeated", "N")] = 50,
    sequences: Annotated[int, Flag("random sequences to measure on", "N")] = 10,
    seed: Annotated[int, Flag("of the random tokens", "N")] = 0,
    device: Device = None,
    dtype: Dtype = None,
    json: Annotated[bool, Flag("print a JSON object with the scores of all heads")] = False,
) -> int:
    """Find previous-token, duplicate-token, induction and copying heads. Scores are fractions of attention,
    on random tokens that are repeated once: there only the repetition can be known. Copying, from -1 to 1,
    is read off the weights."""
    check_whole("-k", k, 1)
    if text is not None:
        check_file(text)
    gpt = load(model, device, dtype)
    from glassgpt.inspect.components.head_scores import named_heads, score_heads

    texts = None if text is None else passages(read_whole(text), gpt.config.n_positions)
    scores = score_heads(
        gpt, texts, length=length, sequences=sequences, seed=seed, progress=progress_bar.progress
    )
    if json:
        values = {kind: scores.values[i].tolist() for i, kind in enumerate(scores.kinds)}
        print(jsonlib.dumps({"model": model, "scores": values}))
        return 0
    rows = named_heads(scores, k=k)
    table = terminal.table("kind", ">head", ">score", "", "such a head")
    previous = None
    for row in rows:
        first = row["kind"] != previous
        previous = row["kind"]
        kind = str(row["kind"])
        table.add_row(
            kind.replace("_", " ") if first else "",
            f"{row['layer']}.{row['head']}",
            f"{row['score']:.2f}",
            terminal.bar(max(0.0, row["score"]), 20),
            SAYS[kind] if first else "",
        )
    terminal.show(table)
    where = f"the text {Path(text).name}" if text is not None else f"{sequences} sequences of random tokens"
    terminal.note(f"{model}: {gpt.config.n_layer} layers of {gpt.config.n_head} heads, measured on {where}")
    return 0


def passages(text: str, n_positions: int) -> list[str]:
    """A long text in parts that fit the context, whatever its tokens are."""
    size = max(1, n_positions)  # characters: a token has at least one byte
    return [
        text[start : start + size]
        for start in range(0, len(text), size)
        if text[start : start + size].strip()
    ]
