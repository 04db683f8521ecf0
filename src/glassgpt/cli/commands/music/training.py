"""`glassgpt music prepare` and `evaluate`: MIDI files for training, and the score of a model on them."""

from __future__ import annotations

import json as jsonlib
import time
from typing import TYPE_CHECKING, Annotated, Literal

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.commands.music.shared import (
    load_music,
)
from glassgpt.cli.loading import Device
from glassgpt.cli.parser.options import Flag, Positional

if TYPE_CHECKING:
    pass


def prepare(
    files: Annotated[
        Positional[tuple[str, ...]],
        Flag(
            "MIDI files or folders of them (one with MAESTRO's CSV is split by it); or a .json of chorales",
            "FILE...",
        ),
    ],
    *,
    out: Annotated[str, Flag("output folder", "DIR", short="-o")],
    events: Annotated[
        Literal["performance", "magenta"], Flag("the events of the paper (388), or Magenta's (310)", "NAME")
    ] = "performance",
    melody: Annotated[str | None, Flag("also teach to accompany: the track with the melody", "TRACK")] = None,
    tempi: Annotated[int, Flag("train on each piece at N tempi, 0.95 to 1.05", "N")] = 1,
    val_fraction: Annotated[float, Flag("fraction of the files for the val split", "X")] = 0.1,
    seed: Annotated[int, Flag("seed of the train/val split", "N")] = 0,
    workers: Annotated[int | None, Flag("worker processes", default="one per core")] = None,
    force: Annotated[bool, Flag("replace an existing output folder")] = False,
    json: Annotated[bool, Flag("print a summary as JSON")] = False,
) -> int:
    """Encode MIDI files as events and write them as shards for training. Files that cannot be read are left
    out and counted."""
    from glassgpt.cli.commands.prepare import show, summarize
    from glassgpt.music.chorales import prepare_chorales
    from glassgpt.music.prepare import prepare_midi

    began = time.perf_counter()
    if len(files) == 1 and files[0].endswith((".json", ".json.xz")):
        index = prepare_chorales(files[0], out, force=force)
    else:
        index = prepare_midi(
            files, out, events=events, melody=melody, tempi=tempi, val_fraction=val_fraction, seed=seed,
            workers=workers, force=force, progress=progress_bar.progress,
        )  # fmt: skip
    skipped = index.get("skipped", [])
    if json:
        print(jsonlib.dumps({**summarize(index), "skipped": len(skipped)}))
    else:
        show(index, out, time.perf_counter() - began)
    for file in skipped[:5]:
        terminal.note(f"left out: {file['reason']}")
    if len(skipped) > 5:
        terminal.note(f"left out: {len(skipped) - 5:,} more")
    return 0


def evaluate(
    model: Annotated[Positional[str], Flag("a model of music: a name, a folder or a file", "MODEL")],
    *,
    data: Annotated[str, Flag("folder written by music prepare", "DIR")],
    split: Annotated[str, Flag("the split to score: train, val or test", "NAME")] = "val",
    stride: Annotated[
        int | None, Flag("events between the beginnings of windows", default="the model's context")
    ] = None,
    device: Device = None,
    json: Annotated[bool, Flag("print the result as JSON")] = False,
) -> int:
    """Score the pieces of a split: the negative log-likelihood per event, in nats, as papers report it."""
    from glassgpt.music.evaluate import evaluate, read_pieces

    gpt = load_music(model, device, "float32", 8)
    found = evaluate(
        gpt.backend, list(read_pieces(data, split)), stride=stride, progress=progress_bar.progress
    )
    if json:
        print(jsonlib.dumps({"nll": found.nll, "events": found.events, "pieces": found.pieces,
                             "stride": found.stride, "split": split}))  # fmt: skip
    else:
        print(f"{found.nll:.4f} nats per event ({found.events:,} events of {found.pieces:,} pieces, {split})")
    return 0
