"""`glassgpt prepare FILES... -o DIR`: tokenize texts into shards for training."""

from __future__ import annotations

import json as jsonlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.errors import SettingError

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer
    from glassgpt.train.data.find_files import Reading


def command(
    files: Annotated[
        Positional[tuple[str, ...]],
        Flag(
            "files, folders or patterns: .txt, .md, .jsonl (also .gz, .xz, .zst), .parquet, .bin, .csv with "
            "--column, a folder of Hugging Face's datasets",
            "FILE...",
        ),
    ],
    *,
    out: Annotated[str, Flag("output folder", "DIR", short="-o")],
    tokenizer: Annotated[
        str,
        Flag(
            "a model, a tokenizer file or folder, or chars, bytes, bpe to build one from these texts",
            "TOKENIZER",
        ),
    ] = "default",
    vocab_size: Annotated[
        int | None, Flag("vocabulary size for --tokenizer bpe", "N", default="4096")
    ] = None,
    val_fraction: Annotated[float, Flag("fraction of the documents for the val split", "X")] = 0.01,
    seed: Annotated[int, Flag("seed of the train/val split", "N")] = 0,
    workers: Annotated[
        int | None, Flag("worker processes", default="one per 64 MiB of text, at most one per core")
    ] = None,
    lines: Annotated[bool, Flag("each line of a text is a document")] = False,
    column: Annotated[
        str | None,
        Flag("the column with the texts: of .csv, .parquet, .jsonl, a dataset", "NAME", default="text"),
    ] = None,
    force: Annotated[bool, Flag("replace an existing output folder")] = False,
    json: Annotated[bool, Flag("print a summary as JSON")] = False,
) -> int:
    """Tokenize texts and write them as shards for training. After Ctrl-C or a kill, the same command resumes,
    with the same result."""
    from glassgpt.files import check_target
    from glassgpt.train.data.find_files import Reading
    from glassgpt.train.data.prepare import prepare

    check_target(Path(out))  # before a vocabulary is learned for it
    began = time.perf_counter()
    reading = Reading(lines, column)
    chosen = choose_tokenizer(tokenizer, vocab_size, files, out, reading)
    try:
        index = prepare(
            files,
            out,
            chosen,
            val_fraction=val_fraction,
            seed=seed,
            workers=workers,
            force=force,
            reading=reading,
            progress=progress_bar.progress,
        )
    except KeyboardInterrupt:
        terminal.note(f"stopped; run the same command again to resume from {out}.part")
        raise
    seconds = time.perf_counter() - began
    if json:
        print(jsonlib.dumps(summarize(index)))
    else:
        show(index, out, seconds)
    return 0


def choose_tokenizer(
    name: str, vocab_size: int | None, files: tuple[str, ...], out: str, reading: Reading
) -> Tokenizer:
    """Load the named tokenizer, or build one of the named kind for these files."""
    from glassgpt.train.data.find_files import find_sources
    from glassgpt.train.data.vocabulary import KINDS, learn_vocabulary
    from glassgpt.weights import load_tokenizer

    if name not in KINDS:
        if vocab_size is not None:
            raise SettingError("--vocab-size is for --tokenizer bpe; other vocabularies have a fixed size.")
        return load_tokenizer(name)
    target = Path(out).expanduser()
    exclude = (target, target.with_name(target.name + ".part"))
    total = sum(source.size for source in find_sources(files, exclude, reading))
    with progress_bar.progress("learning a vocabulary", total, unit="bytes") as advance:
        return learn_vocabulary(
            name, files, vocab_size=vocab_size, exclude=exclude, reading=reading, on_read=advance
        )


def summarize(index: dict[str, Any]) -> dict[str, Any]:
    """The index without its lists of files, which may be thousands."""
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
        terminal.note("note: the val split is empty: there is only one document, or --val-fraction is 0")
    n_bytes = sum(source["bytes"] for source in index["sources"])
    terminal.note(
        f"{out}: read {terminal.size(n_bytes)} in {seconds:.1f} s ({n_bytes / 1e6 / seconds:.0f} MB/s), "
        f"vocabulary {index['tokenizer']['vocab_size']:,} ({index['dtype']})"
    )
