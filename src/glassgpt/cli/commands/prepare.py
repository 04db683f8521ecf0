"""`glassgpt prepare FILES... -o DIR`: texts become token shards to train on."""

from __future__ import annotations

import json as jsonlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.parse import flag
from glassgpt.errors import SettingError

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer


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
    tokenizer: Annotated[
        str,
        flag(
            "a model's, or a tokenizer's file or folder; or chars, bytes, bpe: one made for these texts",
            "TOKENIZER",
        ),
    ] = "default",
    vocab_size: Annotated[
        int | None, flag("with --tokenizer bpe: tokens to learn", "N", default="4096")
    ] = None,
    val_share: Annotated[float, flag("how much of the text is held out for validation", "X")] = 0.01,
    seed: Annotated[int, flag("another seed holds out other documents", "N")] = 0,
    workers: Annotated[
        int | None, flag("processes", default="one for 64 MiB of text, at most one a core")
    ] = None,
    force: Annotated[bool, flag("replace what was prepared there before", default="")] = False,
    json: Annotated[bool, flag("print the index without its lists of files", default="")] = False,
) -> int:
    """Cut texts into tokens and write them as shards for training. After a kill or Ctrl-C the same command
    goes on where it stopped, with the same result."""
    from glassgpt.files import check_target
    from glassgpt.train.data.prepare import prepare

    if not files:
        raise SettingError("prepare: FILE... is missing. See glassgpt prepare --help")
    check_target(Path(out))  # before a vocabulary is learned for it
    began = time.perf_counter()
    cut = tokenizer_for(tokenizer, vocab_size, files, out)
    try:
        index = prepare(
            files,
            out,
            cut,
            val_share=val_share,
            seed=seed,
            workers=workers,
            force=force,
            progress=terminal.progress,
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


def tokenizer_for(name: str, vocab_size: int | None, files: tuple[str, ...], out: str) -> Tokenizer:
    """The one that is named, or one of a kind that is named, made for these files."""
    from glassgpt.train.data.find_files import find_sources
    from glassgpt.train.data.vocabulary import KINDS, learn_vocabulary
    from glassgpt.weights import load_tokenizer

    if name not in KINDS:
        if vocab_size is not None:
            raise SettingError("--vocab-size is for --tokenizer bpe; another vocabulary has its size.")
        return load_tokenizer(name)
    target = Path(out).expanduser()
    besides = (target, target.with_name(target.name + ".part"))
    total = sum(source.size for source in find_sources(files, besides))
    with terminal.progress("learning a vocabulary", total, unit="bytes") as advance:
        return learn_vocabulary(name, files, vocab_size=vocab_size, besides=besides, on_read=advance)


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
