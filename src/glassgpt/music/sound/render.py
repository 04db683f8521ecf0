"""A performance as sound: WAV, and OGG or MP3 where an encoder is installed.

FluidSynth with a soundfont sounds like a recorded piano; without it, the small piano of synth.py plays.
Programs are found on the PATH and get a list of arguments, never a shell command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.files import atomic_write, expand_user
from glassgpt.music.midi import write_midi
from glassgpt.music.performance import Performance
from glassgpt.music.sound.synth import SAMPLE_RATE, Samples, synthesize
from glassgpt.progress import Progress, no_progress

SYNTHESIZERS = ("auto", "fluidsynth", "builtin")
SOUNDFONT_FOLDERS = (
    "/usr/share/sounds/sf2",
    "/usr/share/sounds/sf3",
    "/usr/share/soundfonts",
    "/usr/local/share/soundfonts",
)
GAIN = "1.0"  # the default, 0.2, is for many instruments at once
MAX_SECONDS = 3600.0  # of sound; a minute of WAV has 5 MB
MAX_NOTES = 200_000  # 55 a second for an hour; the built-in piano plays some 1,000 in a second
PLAYERS = (
    ("aplay", "-q"),
    ("paplay",),
    ("afplay",),
    ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error"),
)
ENCODERS = {
    ".ogg": (
        ("oggenc", "-Q", "-o", "{out}", "{wav}"),
        ("ffmpeg", "-v", "error", "-y", "-i", "{wav}", "-f", "ogg", "{out}"),
    ),
    ".mp3": (
        ("lame", "--quiet", "{wav}", "{out}"),
        ("ffmpeg", "-v", "error", "-y", "-i", "{wav}", "-f", "mp3", "{out}"),
    ),
}


def render(
    performance: Performance,
    path: str | Path,
    synthesizer: str = "auto",
    soundfont: str | None = None,
    progress: Progress = no_progress,
) -> str:
    """Write the sound of a performance to a .wav, .ogg or .mp3 file; returns the synthesizer used."""
    path = Path(path)
    if synthesizer not in SYNTHESIZERS:
        raise SettingError(f"synthesizer {synthesizer!r} is not one of {', '.join(SYNTHESIZERS)}.")
    if path.suffix not in (".wav", *ENCODERS):
        raise SettingError(f"{path} must end in .wav, .ogg or .mp3.")
    if performance.seconds > MAX_SECONDS:
        raise SettingError(
            f"{performance.seconds / 60:.0f} minutes are too long to render. "
            f"The most is {MAX_SECONDS / 60:.0f}."
        )
    if len(performance.start) > MAX_NOTES:
        raise SettingError(
            f"{len(performance.start):,} notes are too many to render. The most is {MAX_NOTES:,}."
        )
    encoder = None if path.suffix == ".wav" else find_encoder(path)
    font = None if synthesizer == "builtin" else find_soundfont(soundfont)
    program = None if synthesizer == "builtin" else shutil.which("fluidsynth")
    if synthesizer == "fluidsynth" or soundfont is not None:
        require_fluidsynth(program, font)
    with atomic_write(path) as part, tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "sound.wav"
        if program is not None and font is not None:
            write_midi(performance, Path(folder) / "performance.mid")
            midi = str(Path(folder) / "performance.mid")
            options = ["-ni", "-q", "-g", GAIN, "-r", str(SAMPLE_RATE), "-F", str(wav), "-T", "wav"]
            with progress("rendering"):
                run([program, *options, str(font), midi])
        else:
            write_wav(synthesize(performance, progress=progress), wav)
        if encoder is None:
            shutil.copyfile(wav, part)
        else:
            run([argument.format(out=part, wav=wav) for argument in encoder])
    return "builtin" if program is None or font is None else "fluidsynth"


def write_wav(samples: Samples, path: Path) -> None:
    """16 bits, mono."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.rint(samples * 32767).astype("<i2").tobytes())


def find_soundfont(name: str | None = None) -> Path | None:
    """The file `name`, or that of $SOUNDFONT, or the first one installed on this system."""
    named = name if name is not None else os.environ.get("SOUNDFONT")
    if named is not None:
        if not expand_user(named).is_file():
            raise SettingError(f"soundfont {named} does not exist. Name an .sf2 or .sf3 file.")
        return expand_user(named)
    for folder in SOUNDFONT_FOLDERS:
        for pattern in ("*.sf2", "*.sf3"):
            for found in sorted(Path(folder).glob(pattern)):
                return found
    return None


def require_fluidsynth(program: str | None, font: Path | None) -> None:
    if program is None or font is None:
        missing = "fluidsynth is not installed" if program is None else "no soundfont is installed"
        raise UserError(
            f"{missing}. On Debian and Ubuntu: apt-get install fluidsynth timgm6mb-soundfont; on macOS: brew "
            "install fluid-synth, and name a soundfont. Or use the built-in synthesizer."
        )


def find_encoder(path: Path) -> tuple[str, ...]:
    for encoder in ENCODERS[path.suffix]:
        if shutil.which(encoder[0]) is not None:
            return encoder
    names = " nor ".join(encoder[0] for encoder in ENCODERS[path.suffix])
    raise UserError(f"{path} needs an encoder, and neither {names} is installed. Write a .wav instead.")


def play(path: str | Path) -> None:
    """Play a sound file with the first player that is installed."""
    run([*find_player(), str(path)])


def find_player() -> tuple[str, ...]:
    for player in PLAYERS:
        if shutil.which(player[0]) is not None:
            return player
    raise UserError(
        f"no player was found ({', '.join(player[0] for player in PLAYERS)}). Write a sound file instead: "
        "glassgpt music render FILE -o OUT.wav"
    )


def run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        output = (error.stderr or error.stdout or "").strip().splitlines()
        raise UserError(
            f"{command[0]} failed (exit code {error.returncode}){': ' + output[-1] if output else ''}."
        ) from None
    except OSError as error:
        raise UserError(f"{command[0]} cannot be run ({error.strerror}).") from None
