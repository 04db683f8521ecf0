"""`glassgpt music ACTION`: a model that makes piano music, and what one does with MIDI files."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from glassgpt.cli import terminal
from glassgpt.cli.commands import Command
from glassgpt.cli.loading import Device, default_model, load
from glassgpt.cli.parser.options import Flag, OmitArgPrefixes, Positional
from glassgpt.errors import SettingError
from glassgpt.music.settings import Sampling
from glassgpt.ranges import check_number, check_whole

if TYPE_CHECKING:
    from glassgpt.gpt import GPT
    from glassgpt.music.generate import MusicSample
    from glassgpt.music.performance import Performance

DEFAULT_MODEL = "music"
MusicModel = Annotated[str, Flag("a model of performances: a name, a folder or a file", "MODEL")]
Midi = Annotated[Positional[str], Flag("a MIDI file", "FILE")]
Out = Annotated[str, Flag("the MIDI file to write; several samples are numbered", "FILE", short="-o")]
Samples = Annotated[int, Flag("how many to make, all at once", "N")]
Seed = Annotated[int | None, Flag("makes the music repeatable", default="drawn and reported")]
Training = Annotated[
    str | None,
    Flag("report the longest run of notes copied from these MIDI files (a folder)", "DIR"),
]
Synthesizer = Annotated[
    Literal["auto", "fluidsynth", "builtin"], Flag("auto takes FluidSynth if it is there", "NAME")
]
Soundfont = Annotated[str | None, Flag("an .sf2 or .sf3 file for FluidSynth", "FILE", default="the system's")]
Force = Annotated[bool, Flag("replace an existing file")]
Json = Annotated[bool, Flag("print a JSON object for each sample")]

Action = Literal["sample", "continue", "accompany", "render", "play", "roll", "prepare", "evaluate"]


def load_music(model: str, device: str | None, dtype: str | None = None, samples: int = 1) -> GPT:
    if model == DEFAULT_MODEL and not Path(model).exists():
        default_model(DEFAULT_MODEL, "recipes/music")
    return load(model, device, dtype, samples)


def command(
    action: Annotated[
        Positional[Action],
        Flag("what to do; each action has options of its own", "ACTION"),
    ],
) -> int:
    """Make piano music and hear it: sample from nothing, continue a MIDI file, accompany a melody; render it
    as sound, play it, draw its piano roll; prepare MIDI files for training, and evaluate a model on them.
    Each action has options of its own: glassgpt music sample --help"""
    raise SettingError(f"music: {action} is an action. See glassgpt music {action} --help")


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
            gpt, seconds, samples=samples, seed=seed, sampling=sampling, progress=terminal.progress
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
            progress=terminal.progress,
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
            gpt, melody, samples=samples, seed=seed, sampling=sampling, progress=terminal.progress
        )
    return write_music(music, number_files(out, samples), training, json, added)


def render(
    midi: Midi,
    *,
    out: Annotated[str, Flag("the file to write: .wav, .ogg or .mp3", "FILE", short="-o")],
    synthesizer: Synthesizer = "auto",
    soundfont: Soundfont = None,
    force: Force = False,
) -> int:
    """Write the sound of a MIDI file. FluidSynth plays it if it is installed, else a small built-in piano."""
    from glassgpt.music.sound.render import render

    check_output(Path(out), midi, force)
    performance = read_performance(midi)
    with terminal.spinner(f"rendering {performance.seconds:.0f} s of music"):
        player = render(performance, out, synthesizer, soundfont)
    terminal.note(f"{out}: {performance.seconds:.1f} s, played by {player}")
    return 0


def play(
    midi: Midi,
    *,
    synthesizer: Synthesizer = "auto",
    soundfont: Soundfont = None,
) -> int:
    """Play a MIDI file aloud, with the first player that this machine has."""
    import tempfile

    from glassgpt.music.sound.render import find_player, play, render

    performance = read_performance(midi)
    find_player()  # before the work of rendering
    with tempfile.TemporaryDirectory() as folder:
        with terminal.spinner(f"rendering {performance.seconds:.0f} s of music"):
            render(performance, Path(folder) / "sound.wav", synthesizer, soundfont)
        terminal.note(f"playing {performance.seconds:.0f} s; Ctrl-C stops")
        play(Path(folder) / "sound.wav")
    return 0


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
            workers=workers, force=force, progress=terminal.progress,
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
    found = evaluate(gpt.backend, list(read_pieces(data, split)), stride=stride, progress=terminal.progress)
    if json:
        print(jsonlib.dumps({"nll": found.nll, "events": found.events, "pieces": found.pieces,
                             "stride": found.stride, "split": split}))  # fmt: skip
    else:
        print(f"{found.nll:.4f} nats per event ({found.events:,} events of {found.pieces:,} pieces, {split})")
    return 0


def read_performance(midi: str, track: str | None = None) -> Performance:
    """The performance in a MIDI file, which has notes."""
    from glassgpt.music.midi import read_midi

    performance = read_midi(midi, None if track is None else [track])
    if not len(performance):
        if track is None:
            raise SettingError(f"{midi} has no notes. Name another MIDI file.")
        raise SettingError(f"track {track!r} of {midi} has no notes. Choose another track.")
    return performance


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


def check_output(path: Path, midi: str | None, force: bool) -> None:
    """A file that may be written, before the work of a minute is done for it."""
    from glassgpt.files import check_new_file

    if midi is not None and is_same(path, midi):
        raise SettingError(f"--out {path} would replace the input {midi}. Name another file.")
    check_new_file(path, force)


def is_same(path: Path, other: str) -> bool:
    return path.exists() and Path(other).exists() and path.samefile(other)


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

    return read_performances([folder], progress=terminal.progress)


def copied(performance: Performance, others: list[Performance]) -> dict[str, Any]:
    """The memorization report of one sample."""
    from glassgpt.music.memorization import longest_copy

    if not others:
        return {}
    with terminal.spinner("looking for copied notes"):
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


SUBCOMMANDS: dict[str, tuple[Callable[..., int], Command]] = {
    "sample": (
        sample,
        Command(
            "compose from nothing",
            (
                "glassgpt music sample -o a.mid",
                "glassgpt music sample -o a.mid --seconds 60 --samples 4 --seed 1 --temperature 0.95",
            ),
        ),
    ),
    "continue": (
        continue_,
        Command(
            "continue a MIDI file",
            (
                "glassgpt music continue opening.mid -o out.mid",
                "glassgpt music continue song.mid -o out.mid --cut 12.5 --seconds 20 --samples 3",
            ),
        ),
    ),
    "accompany": (
        accompany,
        Command(
            "accompany a melody",
            (
                "glassgpt music accompany melody.mid -o song.mid",
                "glassgpt music accompany song.mid --track MELODY -o new.mid --seed 3",
            ),
        ),
    ),
    "render": (
        render,
        Command("write a MIDI file as sound", ("glassgpt music render a.mid -o a.wav",)),
    ),
    "play": (play, Command("play a MIDI file", ("glassgpt music play a.mid",))),
    "roll": (
        roll,
        Command(
            "draw a piano roll",
            (
                "glassgpt music roll a.mid -o a.svg",
                "glassgpt music roll a.mid -o a.svg --seconds 10 --attention --event -1 --layer 3",
            ),
        ),
    ),
    "prepare": (
        prepare,
        Command(
            "encode MIDI files for training",
            (
                "glassgpt music prepare midi/ -o shards/",
                "glassgpt music prepare maestro-v3.0.0/ -o shards/ --tempi 5",
                "glassgpt music prepare POP909/ -o shards/ --tempi 5 --melody MELODY",
            ),
        ),
    ),
    "evaluate": (
        evaluate,
        Command(
            "score a model on held-out pieces",
            ("glassgpt music evaluate runs/piano --data shards/ --split test --stride 1024",),
        ),
    ),
}
