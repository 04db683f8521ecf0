"""The shards of docs/music.md from the archives, with all cores: POP909, MAESTRO, JSB chorales.

    python recipes/music/prepare.py ../shared/data/music -o shards/
    python recipes/music/prepare.py ../shared/data/music -o shards/ --only pop909

The same as `glassgpt music prepare` with the options of README.md, for a machine that has numpy and torch but
not what the command line needs. An archive that is not there is left out.
"""

from __future__ import annotations

import argparse
import tarfile
import time
from pathlib import Path
from typing import Any

from glassgpt.music.chorales import prepare_chorales
from glassgpt.music.prepare import prepare_midi

ARCHIVES = {"pop909": "pop909.tar.xz", "maestro": "maestro-v3.tar.xz", "jsb": "jsb-chorales-16th.json.xz"}
OPTIONS: dict[str, dict[str, Any]] = {"pop909": {"tempi": 5, "melody": "MELODY"}, "maestro": {"tempi": 5}}


def prepare(name: str, archive: Path, out: Path) -> dict[str, Any]:
    """Write the shards of one collection; their index."""
    if name == "jsb":
        return prepare_chorales(archive, out / name, force=True)
    files = out / f"{name}-files"
    with tarfile.open(archive) as opened:
        opened.extractall(files, filter="data")
    (folder,) = (path for path in files.iterdir() if path.is_dir())
    return prepare_midi([folder], out / name, force=True, **OPTIONS[name])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", type=Path, help="the folder with the archives")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", choices=tuple(ARCHIVES), nargs="+", default=tuple(ARCHIVES))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        archive, began = args.archives / ARCHIVES[name], time.perf_counter()
        if not archive.exists():
            print(f"{archive} is not there")
            continue
        index = prepare(name, archive, args.out)
        tokens = {split: facts["tokens"] for split, facts in index["splits"].items()}
        skipped = len(index.get("skipped", []))
        print(name, tokens, f"{skipped} skipped, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
