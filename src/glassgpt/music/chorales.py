"""Bach's chorales on a grid of sixteenths, as the JSB Chorales data set has them.

A JSON file: split -> chorales -> sixteenths -> the pitches of the voices, highest first. Written as the Music
Transformer does, voice by voice and then the next sixteenth; rests fill up sixteenths with fewer than four
pitches.
"""

from __future__ import annotations

import itertools
import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import FileFormatError
from glassgpt.files import read_bytes
from glassgpt.music.performance import Performance
from glassgpt.music.prepare import SPLITS, write_shards
from glassgpt.tokenizer.events import PITCHES, ChoraleTokenizer

VOICES = 4
REST = PITCHES
LIMIT = 1 << 26  # bytes of JSON; the data set has 2 MB
SIXTEENTH = 0.15  # seconds, for playing: 100 quarters a minute
VELOCITY = 72


def prepare_chorales(path: str | Path, out: str | Path, *, force: bool = False) -> dict[str, Any]:
    """Write the chorales of a JSON file (or .json.xz) as shards into the folder `out`; its index."""
    documents = list(read_chorales(Path(path)))
    return write_shards(out, ChoraleTokenizer(), documents, dict, force)


def read_chorales(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    data = read_bytes(path, LIMIT)
    try:
        if path.suffix == ".xz":
            data = lzma.LZMADecompressor().decompress(data, LIMIT)
        splits = json.loads(data)
        for split, chorales in splits.items():
            for chorale in chorales:
                yield {**SPLITS, "valid": "val"}[split], encode_chorale(chorale)
    except (
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, lzma.LZMAError
    ) as error:  # fmt: skip
        raise FileFormatError(
            f"{path} is not a file of chorales ({type(error).__name__}: {error}). It has to be JSON: "
            '{"train": [[[pitch, ...], ...], ...], "valid": ..., "test": ...}.'
        ) from None


def encode_chorale(steps: Iterable[Sequence[float]]) -> np.ndarray:
    """The ids of a chorale: VOICES for each sixteenth."""
    rows = []
    for step in steps:
        pitches = sorted((int(pitch) for pitch in step), reverse=True)
        if len(pitches) > VOICES or any(not 0 <= pitch < PITCHES for pitch in pitches):
            raise ValueError(f"a sixteenth has the pitches {pitches}")
        rows.append(pitches + [REST] * (VOICES - len(pitches)))
    return np.array(rows, np.int64).reshape(-1)


def decode_chorale(ids: Iterable[int]) -> Performance:
    """A chorale to hear: a pitch that a voice repeats is one long note. Ids that are not
    pitches, and an incomplete last sixteenth, are left out."""
    values = np.array([id for id in ids if id <= REST], np.int64)
    grid = values[: len(values) // VOICES * VOICES].reshape(-1, VOICES)  # (steps, voices)
    notes: list[tuple[float, float, int, int]] = []
    for voice in grid.T:
        changes = np.flatnonzero(np.diff(voice, prepend=-1, append=-1))
        notes += [
            (a * SIXTEENTH, b * SIXTEENTH, int(voice[a]), VELOCITY)
            for a, b in itertools.pairwise(changes)
            if voice[a] != REST
        ]
    start, end, pitch, velocity = np.array(notes, np.float64).reshape(-1, 4).T
    return Performance.from_notes(start, end, pitch, velocity)
