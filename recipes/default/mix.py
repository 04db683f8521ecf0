"""Mix what `collect.py` wrote: a few documents held out, all others shuffled, in pieces of bounded size.

    python recipes/default/mix.py text/ -o pieces/

Every piece is a sample of the whole: a document's place is the hash of its source, title and beginning. One
document in 300 is held out by the hash of its title, so that an article's other revisions are held out with
it. `mix.json` counts both. The same texts give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from rich.progress import track

PIECE = 110_000_000  # bytes of text: some 40 MB as .xz
HELD_OUT = 300


def number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def is_held_out(title: str) -> bool:
    return number(re.sub(r"[^a-z0-9]", "", title.lower())) % HELD_OUT == 0


def compress(unsorted: Path, piece: Path) -> tuple[str, str, int]:
    """The lines of one piece in the order of their keys; (name, sha256, documents)."""
    lines = sorted(unsorted.read_bytes().splitlines(keepends=True))
    with lzma.open(piece, "wb", preset=1) as out:
        for line in lines:
            out.write(line[17:])  # a key of 16 digits and a tab are ahead of the document
    unsorted.unlink()
    return piece.name, hashlib.sha256(piece.read_bytes()).hexdigest(), len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path, help="folder with one .jsonl for every source")
    parser.add_argument("--without", nargs="*", default=[], help="sources to leave out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    files = [file for file in sorted(given.text.glob("*.jsonl")) if file.stem not in given.without]
    count = sum(file.stat().st_size for file in files) // PIECE + 1
    documents, texts = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(dir=given.out) as folder:
        names = [Path(folder) / f"mix-{piece:03}.jsonl" for piece in range(count)]
        with ExitStack() as stack:
            pieces = [stack.enter_context(name.open("wb", buffering=1 << 16)) for name in names]
            held_out = stack.enter_context((given.out / "heldout.jsonl").open("wb"))
            for file in files:
                with file.open("rb") as lines:
                    for line in track(lines, file.stem, total=None):
                        document = json.loads(line)
                        kind = "held out" if is_held_out(document["title"]) else "mixed"
                        documents[f"{file.stem} {kind}"] += 1
                        texts[f"{file.stem} {kind}"] += len(document["text"].encode("utf-8", "replace"))
                        if kind == "held out":
                            held_out.write(line)
                            continue
                        key = number(f"{document['source']}\n{document['title']}\n{document['text'][:200]}")
                        pieces[key * count >> 64].write(f"{key:016x}\t".encode() + line)
        with ProcessPoolExecutor(given.workers) as pool:
            targets = [given.out / f"{name.name}.xz" for name in names]
            written = list(track(pool.map(compress, names, targets), "compressing", total=count))
    report = {
        "documents": dict(sorted(documents.items())),
        "bytes of text": dict(sorted(texts.items())),
        "pieces": {name: {"sha256": digest, "documents": lines} for name, digest, lines in written},
    }
    (given.out / "mix.json").write_text(json.dumps(report, indent=1) + "\n")
    total = sum(size for name, size in texts.items() if name.endswith("mixed"))
    lines = sum(lines for *_, lines in written)
    print(f"{given.out}: {count} pieces, {lines:,} documents, {total:,} bytes of text")


if __name__ == "__main__":
    main()
