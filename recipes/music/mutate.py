"""Damaged copies of MIDI files are read or refused, and soon: python recipes/music/mutate.py FOLDER

Bytes are changed, moved, removed and inserted. Each of 2,000 copies is read, encoded, decoded and written
again; the longest of them is reported in seconds of this process. Anything but a performance or a `UserError`
is raised.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from glassgpt.errors import UserError
from glassgpt.music import PerformanceTokenizer
from glassgpt.music.midi import read_midi, to_midi
from glassgpt.music.prepare import find_pieces

EXTREMES = (0x00, 0x7F, 0x80, 0xF0, 0xF7, 0xFF)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A copy with one to three kinds of damage. Most keep the length: a chunk of another size than it says is
    refused at once."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(64, len(made)) if rng.random() < 0.2 else len(made))  # the head has the sizes
        size = min(rng.choice((1, 1, 4, 40, 4000)), len(made) - at)
        kind = rng.randrange(8)
        if kind < 3:
            made[at] = rng.randrange(256)
        elif kind < 5:
            made[at : at + size] = bytes(rng.choices(EXTREMES, k=size))
        elif kind < 6:
            there = rng.randrange(len(made) - size + 1)
            made[at : at + size] = made[there : there + size]
        elif kind < 7:
            del made[at : at + size]
        else:
            made[at:at] = rng.randbytes(size)
        if not made:
            return b"\0"
    return bytes(made)


def check(path: Path) -> bool:
    """Whether the file can be read; raises if it breaks anything."""
    codec = PerformanceTokenizer()
    try:
        performance = read_midi(path)
    except UserError:
        return False
    to_midi(codec.decode(codec.encode(performance).tolist()))
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    files = [piece.path for piece in find_pieces([args.folder], 0.0, 0)]
    count: Counter[str] = Counter()
    longest, which = 0.0, ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutated.mid"
        for number in range(args.count):
            source = rng.choice(files)
            path.write_bytes(mutate(source.read_bytes(), rng))
            began = time.process_time()
            count["read" if check(path) else "refused"] += 1
            taken = time.process_time() - began
            if taken > longest:
                longest, which = taken, f"{source.name}, mutation {number}"
    print(json.dumps({"folder": args.folder.name, **count, "longest_cpu_s": round(longest, 3), "of": which}))


if __name__ == "__main__":
    main()
