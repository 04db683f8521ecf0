"""`glassgpt music ACTION`: make piano music with a model, and work with MIDI files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from glassgpt.cli.commands import Command
from glassgpt.cli.commands.music.compose import accompany, continue_, sample
from glassgpt.cli.commands.music.roll import roll
from glassgpt.cli.commands.music.sound import play, render
from glassgpt.cli.commands.music.training import evaluate, prepare
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.errors import SettingError

Action = Literal["sample", "continue", "accompany", "render", "play", "roll", "prepare", "evaluate"]


def command(
    action: Annotated[
        Positional[Action],
        Flag("what to do; each action has its own options", "ACTION"),
    ],
) -> int:
    """Make piano music and hear it: sample from nothing, continue a MIDI file, accompany a melody; render it
    as sound, play it, draw its piano roll; prepare MIDI files for training, and evaluate a model on them.
    Each action has its own options: glassgpt music sample --help"""
    raise SettingError(f"music: {action} is an action. See glassgpt music {action} --help")


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
