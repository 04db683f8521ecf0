"""Every MIDI file of some folders to events and back: python recipes/music/round_trip.py FOLDER...

The notes have to come back within 10 ms and in the same velocity bin, pitch by pitch; and what our reader
makes of a file has to be what a second one, on top of mido, makes of it (--no-mido: without, it is slow).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from glassgpt.errors import UserError
from glassgpt.music import Performance, PerformanceTokenizer
from glassgpt.music.midi import read_midi
from glassgpt.music.prepare import find_pieces

STEP = 0.01


def same_notes(found: Performance, wanted: Performance) -> str:
    """What is wrong with the notes found, or nothing."""
    if len(found) != len(wanted):
        return f"{len(found)} notes of {len(wanted)}"
    a, b = np.lexsort((found.start, found.pitch)), np.lexsort((wanted.start, wanted.pitch))
    if (found.pitch[a] != wanted.pitch[b]).any():
        return "other pitches"
    for name in ("start", "end"):
        if abs(getattr(found, name)[a] - getattr(wanted, name)[b]).max(initial=0) > STEP + 1e-6:
            return f"{name} more than 10 ms away"
    if ((found.velocity[a] - 1) // 4 != (wanted.velocity[b] - 1) // 4).any():
        return "another velocity bin"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--no-mido", dest="mido", action="store_false")
    args = parser.parse_args()
    if args.mido:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        from tests.music.mido_reader import read_with_mido
    codec = PerformanceTokenizer()
    for folder in args.folders:
        count: Counter[str] = Counter()
        began, seconds, events = time.perf_counter(), 0.0, 0
        for piece in find_pieces([folder], 0.0, 0):
            count["files"] += 1
            try:
                performance = read_midi(piece.path)
            except UserError as error:
                count["unreadable"] += 1
                print(error)
                continue
            ids = codec.encode(performance)
            wrong = same_notes(codec.decode(ids.tolist()), performance)
            count["notes"] += len(performance)
            events += len(ids)
            seconds += performance.seconds
            count["round trip failed"] += bool(wrong)
            if wrong:
                print(piece.path, wrong)
            if args.mido:
                differs = same_notes(read_with_mido(piece.path), performance)
                count["mido differs"] += bool(differs)
                if differs:
                    print(piece.path, "against mido:", differs)
        elapsed = round(time.perf_counter() - began, 1)
        print(json.dumps({"folder": folder.name, **count, "events": events, "hours": round(seconds / 3600, 2),
                          "seconds": elapsed}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
