"""`glassgpt prepare FILES... -o DIR`: texts become token shards to train on."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.parse import flag
from glassgpt.errors import SettingError


def command(
    files: Annotated[
        Positional[tuple[str, ...]],
        flag(
            "texts, folders or patterns: .txt, .md, .jsonl (also .gz, .xz, .zst), .parquet, .bin",
            "FILE...",
            default="",
        ),
    ],
    *,
    out: Annotated[str, flag("the folder to write", "DIR", short="-o")],
    tokenizer: Annotated[str, flag("a model, or a tokenizer's file or folder", "NAME")] = "default",
    val_share: Annotated[float, flag("how much of the text is held out for validation", "X")] = 0.01,
    seed: Annotated[int, flag("another seed holds out other documents", "N")] = 0,
    workers: Annotated[int | None, flag("processes", default="one a core")] = None,
    force: Annotated[bool, flag("replace what was prepared there before", default="")] = False,
    json: Annotated[bool, flag("print the index without its lists of files", default="")] = False,
) -> int:
    """Cut texts into tokens and write them as shards for training. After a kill or Ctrl-C the same command
    goes on where it stopped, with the same result."""
    from glassgpt.train.prepare import prepare
    from glassgpt.weights import load_tokenizer

    if not files:
        raise SettingError("prepare: FILE... is missing. See glassgpt prepare --help")
    began = time.perf_counter()
    with ExitStack() as stack:
        bars: list[Callable[[int], None]] = []
        try:
            index = prepare(
                files,
                out,
                load_tokenizer(tokenizer),
                val_share=val_share,
                seed=seed,
                workers=workers,
                force=force,
                begin=lambda total: bars.append(stack.enter_context(terminal.progress("preparing", total))),
                advance=lambda n: bars[0](n),
            )
        except KeyboardInterrupt:
            terminal.note(f"stopped; the same command goes on from {out}.part")
            raise
    seconds = time.perf_counter() - began
    if json:
        print(jsonlib.dumps(summary(index)))
    else:
        show(index, out, seconds)
    return 0


def summary(index: dict[str, Any]) -> dict[str, Any]:
    """The index for programs, without what may be thousands of lines."""
    splits = {
        name: {"tokens": split["tokens"], "documents": split["documents"], "files": len(split["files"])}
        for name, split in index["splits"].items()
    }
    return {**index, "splits": splits, "sources": len(index["sources"])}


def show(index: dict[str, Any], out: str, seconds: float) -> None:
    made = terminal.table("split", ">tokens", ">documents", ">files")
    for name, split in index["splits"].items():
        made.add_row(name, f"{split['tokens']:,}", f"{split['documents']:,}", str(len(split["files"])))
    terminal.show(made)
    if not index["splits"]["val"]["tokens"]:
        terminal.note("note: nothing is held out for validation: there is one document, or the share is 0")
    n_bytes = sum(source["bytes"] for source in index["sources"])
    terminal.note(
        f"{out}: {terminal.size(n_bytes)} read in {seconds:.1f} s ({n_bytes / 1e6 / seconds:.0f} MB/s), "
        f"vocabulary {index['tokenizer']['vocab_size']:,} ({index['dtype']})"
    )
