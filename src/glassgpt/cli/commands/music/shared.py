"""What the actions of `glassgpt music` share: options, and the checks of their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassgpt.cli.loading import default_model, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.errors import SettingError

if TYPE_CHECKING:
    from glassgpt.gpt import GPT
    from glassgpt.music.performance import Performance

DEFAULT_MODEL = "music"
MusicModel = Annotated[str, Flag("a model of performances: a name, a folder or a file", "MODEL")]
Midi = Annotated[Positional[str], Flag("a MIDI file", "FILE")]
Force = Annotated[bool, Flag("replace an existing file")]


def load_music(model: str, device: str | None, dtype: str | None = None, samples: int = 1) -> GPT:
    if model == DEFAULT_MODEL and not Path(model).exists():
        default_model(DEFAULT_MODEL, "recipes/music")
    return load(model, device, dtype, samples)


def read_performance(midi: str, track: str | None = None) -> Performance:
    """The performance in a MIDI file, which has notes."""
    from glassgpt.music.midi import read_midi

    performance = read_midi(midi, None if track is None else [track])
    if not len(performance):
        if track is None:
            raise SettingError(f"{midi} has no notes. Name another MIDI file.")
        raise SettingError(f"track {track!r} of {midi} has no notes. Choose another track.")
    return performance


def check_output(path: Path, midi: str | None, force: bool) -> None:
    """A file that may be written, before the work of a minute is done for it."""
    from glassgpt.files import check_new_file

    if midi is not None and is_same(path, midi):
        raise SettingError(f"--out {path} would replace the input {midi}. Name another file.")
    check_new_file(path, force)


def is_same(path: Path, other: str) -> bool:
    return path.exists() and Path(other).exists() and path.samefile(other)
