"""`glassgpt music roll`: a MIDI file as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassgpt.cli import terminal
from glassgpt.cli.commands.music.shared import (
    DEFAULT_MODEL,
    Force,
    Midi,
    MusicModel,
    check_output,
    load_music,
    read_performance,
)
from glassgpt.cli.loading import Device
from glassgpt.cli.parser.options import Flag
from glassgpt.errors import SettingError
from glassgpt.ranges import check_number

if TYPE_CHECKING:
    pass


def roll(
    midi: Midi,
    *,
    out: Annotated[str, Flag("the picture to write: .svg or .png", "FILE", short="-o")],
    seconds: Annotated[float | None, Flag("draw the first X seconds", "X", default="all of it")] = None,
    attention: Annotated[bool, Flag("draw what an event attends to: an arc per head and event")] = False,
    event: Annotated[int | None, Flag("the event that attends; -1 is the last", "N", default="-1")] = None,
    layer: Annotated[
        int | None, Flag("the layer whose heads are drawn; -1 is the last", "N", default="-1")
    ] = None,
    head: Annotated[tuple[int, ...], Flag("draw these heads only", "N", default="all")] = (),
    model: MusicModel = DEFAULT_MODEL,
    device: Device = None,
    force: Force = False,
) -> int:
    """Draw the piano roll of a MIDI file: time to the right, pitch upwards, loud notes dark. With
    --attention, arcs lead from one event to those that a model's heads look at."""
    from glassgpt.figures.figure import check_picture
    from glassgpt.music.arcs import attention_arcs
    from glassgpt.music.event_codec import PerformanceTokenizer
    from glassgpt.music.generate.music_sample import MAX_SECONDS, tokenizer_of
    from glassgpt.music.roll import draw_roll

    given = {"--event": event is not None, "--layer": layer is not None, "--head": bool(head)}
    if not attention and any(given.values()):
        option = next(name for name, is_given in given.items() if is_given)
        raise SettingError(f"music roll: {option} chooses what --attention draws. Add --attention.")
    check_output(Path(out), midi, force)
    check_picture(out)  # before the work, like the check above
    performance = read_performance(midi)
    if seconds is not None:
        check_number("seconds", seconds, 0.01, MAX_SECONDS, f"{midi} has {performance.seconds:.2f}")
        performance = performance.crop(0, seconds)
    arcs = []
    if attention:
        gpt = load_music(model, device, None)
        ids = PerformanceTokenizer(tokenizer_of(gpt).events.name).encode(performance).tolist()
        arcs = attention_arcs(
            gpt, ids, -1 if event is None else event, -1 if layer is None else layer, head if head else None
        )
    draw_roll(performance, Path(midi).name, arcs=arcs).save(out)
    terminal.note(f"{out}: {len(performance):,} notes, {performance.seconds:.1f} s")
    return 0
