"""`glassgpt music render` and `play`: a MIDI file as sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.commands.music.shared import (
    Force,
    Midi,
    check_output,
    read_performance,
)
from glassgpt.cli.parser.options import Flag

if TYPE_CHECKING:
    pass

Synthesizer = Annotated[
    Literal["auto", "fluidsynth", "builtin"], Flag("auto takes FluidSynth if it is there", "NAME")
]
Soundfont = Annotated[str | None, Flag("an .sf2 or .sf3 file for FluidSynth", "FILE", default="the system's")]


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
    player = render(performance, out, synthesizer, soundfont, progress_bar.progress)
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
        render(performance, Path(folder) / "sound.wav", synthesizer, soundfont, progress_bar.progress)
        terminal.note(f"playing {performance.seconds:.0f} s; Ctrl-C stops")
        play(Path(folder) / "sound.wav")
    return 0
