"""`glassgpt music sample`, `continue` and `accompany`: compose and write MIDI files."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.commands.music.shared import (
    DEFAULT_MODEL,
    Force,
    Midi,
    MusicModel,
    check_output,
    is_same,
    load_music,
    read_performance,
)
from glassgpt.cli.loading import Device
from glassgpt.cli.parser.options import Flag, OmitArgPrefixes
from glassgpt.errors import SettingError
from glassgpt.music.settings import Sampling
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.music.generate import MusicSample
    from glassgpt.music.performance import Performance

Out = Annotated[str, Flag("the MIDI file to write; several samples are numbered", "FILE", short="-o")]
Samples = Annotated[int, Flag("how many to make, all at once", "N")]
Seed = Annotated[int | None, Flag("makes the music repeatable", default="drawn and reported")]
Training = Annotated[
    str | None,
    Flag("report the longest run of notes copied from these MIDI files (a folder)", "DIR"),
]
Json = Annotated[bool, Flag("print a JSON object for each sample")]


def sample(
    *,
    out: Out,
    seconds: Annotated[float, Flag("length of the music, exactly", "X")] = 30.0,
    samples: Samples = 1,
    seed: Seed = None,
    sampling: OmitArgPrefixes[Sampling] = Sampling(),  # noqa: B008  (frozen)
    model: MusicModel = DEFAULT_MODEL,
    device: Device = None,
    training: Training = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Compose from nothing and write a MIDI file."""
    from glassgpt.music import generate

    check_midi_name(out, None, samples, force)
    gpt = load_music(model, device, None, samples)
    with composing(out, samples, json):
        music = generate.sample(
            gpt, seconds, samples=samples, seed=seed, sampling=sampling, progress=progress_bar.progress
        )
    return write_music(music, number_files(out, samples), training, json)


def continue_(
    midi: Midi,
    *,
    out: Out,
    cut: Annotated[float | None, Flag("keep the first X seconds of FILE", "X", default="all of it")] = None,
    seconds: Annotated[float, Flag("length of what is added, exactly", "X")] = 30.0,
    samples: Samples = 1,
    seed: Seed = None,
    sampling: OmitArgPrefixes[Sampling] = Sampling(),  # noqa: B008
    model: MusicModel = DEFAULT_MODEL,
    device: Device = None,
    training: Training = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Continue a MIDI file. Its notes stay as they were played; those that are held at the cut go on until
    the model ends them."""
    from glassgpt.music import generate

    check_midi_name(out, midi, samples, force)
    primer = read_performance(midi)
    if cut is not None and cut - primer.seconds >= 1:
        end = f"the last note of {midi} ends at {primer.seconds:.2f} s"
        terminal.note(f"note: {end}; silence follows until --cut {cut:g}")
    gpt = load_music(model, device, None, samples)
    with composing(out, samples, json):
        music = generate.continue_primer(
            gpt, primer, seconds, cut=cut, samples=samples, seed=seed, sampling=sampling,
            progress=progress_bar.progress,
        )  # fmt: skip
    return write_music(music, number_files(out, samples), training, json)


def accompany(
    midi: Midi,
    *,
    out: Out,
    track: Annotated[
        str | None, Flag("the track of FILE with the melody", "NAME", default="all tracks")
    ] = None,
    without_melody: Annotated[bool, Flag("write the accompaniment alone")] = False,
    samples: Samples = 1,
    seed: Seed = None,
    sampling: OmitArgPrefixes[Sampling] = Sampling(),  # noqa: B008
    model: MusicModel = DEFAULT_MODEL,
    device: Device = None,
    training: Training = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Accompany the melody in a MIDI file; melody and accompaniment are written together."""
    from glassgpt.music import generate

    check_midi_name(out, midi, samples, force)
    melody = read_performance(midi, track)
    gpt = load_music(model, device, None)
    added = None if without_melody else melody
    with composing(out, samples, json, added):
        music = generate.accompany(
            gpt, melody, samples=samples, seed=seed, sampling=sampling, progress=progress_bar.progress
        )
    return write_music(music, number_files(out, samples), training, json, added)


def check_midi_name(out: str, midi: str | None, samples: int, force: bool) -> None:
    """`out` can be a MIDI file, and no sample replaces the input, nor any other file without --force."""
    from glassgpt.music.generate.music_sample import MAX_SAMPLES

    if Path(out).suffix.lower() not in (".mid", ".midi"):
        raise SettingError(f"--out {out} must end in .mid. For sound: glassgpt music render FILE -o a.wav")
    check_whole("samples", samples, 1, MAX_SAMPLES)
    if midi is not None and is_same(Path(out), midi):
        raise SettingError(f"--out {out} would replace the input {midi}. Name another file.")
    for path in number_files(out, samples):
        check_output(path, midi, force)


def number_files(out: str, samples: int) -> list[Path]:
    """The file of each sample."""
    path = Path(out)
    if samples == 1:
        return [path]
    return [path.with_stem(f"{path.stem}-{number}") for number in range(1, samples + 1)]


@contextmanager
def composing(out: str, samples: int, json: bool, added: Performance | None = None) -> Iterator[None]:
    """Say how long it took; after Ctrl-C, write the music so far."""
    from glassgpt.music.generate import InterruptedMusic

    began = time.perf_counter()
    try:
        yield
    except InterruptedMusic as interrupt:
        write_music(interrupt.samples, number_files(out, samples), None, json, added)
        missing = samples - len(interrupt.samples)
        terminal.note("interrupted" + (f"; {missing} of {samples} samples had not begun" if missing else ""))
        raise
    terminal.note(f"composed in {time.perf_counter() - began:.1f} s")


def write_music(
    samples: list[MusicSample],
    paths: list[Path],
    training: str | None,
    json: bool,
    added: Performance | None = None,
) -> int:
    """Write each sample, with what is added to it, as a MIDI file, and say what it is."""
    from glassgpt.music.midi import write_midi

    others = [] if training is None else read_training(training)
    for sample, path in zip(samples, paths, strict=False):  # after Ctrl-C there may be fewer samples
        performance = sample.performance
        if added is not None:
            performance = performance.merge(added.crop(0, sample.seconds))
        write_midi(performance, path, sample.seconds)
        facts = {
            "file": str(path), "seconds": sample.seconds, "notes": len(performance),
            "events": len(sample.ids), "seed": sample.seed, **copied(sample.composed, others),
        }  # fmt: skip
        if json:
            print(jsonlib.dumps(facts))
        else:
            terminal.note(describe(facts))
        for remark in sample.notes:
            terminal.note(f"note: {remark}")
    return 0


def read_training(folder: str) -> list[Performance]:
    from glassgpt.music.prepare import read_performances

    return read_performances([folder], progress=progress_bar.progress)


def copied(performance: Performance, others: list[Performance]) -> dict[str, Any]:
    """The memorization report of one sample."""
    from glassgpt.music.memorization import longest_copy

    if not others:
        return {}
    with progress_bar.spinner("looking for copied notes"):
        found = longest_copy(performance, others)
    return {
        "copied_notes": found.notes,
        "copied_seconds": round(found.seconds, 2),
        "copied_from": found.start,
    }


def describe(facts: dict[str, Any]) -> str:
    line = f"{facts['file']}: {facts['seconds']:.2f} s, {facts['notes']:,} notes (seed {facts['seed']})"
    if "copied_notes" in facts:
        line += (
            f"; the longest run also found in the training files: {facts['copied_notes']} notes, "
            f"{facts['copied_seconds']:.1f} s, from {facts['copied_from']:.1f} s on"
        )
    return line
