"""The folder a case runs in: a model, prepared data, an interrupted run, and files that must not change."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from glassgpt.cli import main
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.weights import load_checkpoint
from tests.weights.conftest import save_rows

MODELS = ("model", "model-int8", "model-int4", "model-rows")
PROTECTED = (*MODELS, "book.txt", "lines.jsonl", "precious.txt", "shards")  # what no command may change


def make(folder: Path) -> None:
    """Make everything, with the command line itself."""
    folder.mkdir(parents=True)
    text = "".join(
        f"On day {n} the ferry left at {n % 24} o'clock with {n * 7 % 31} passengers.\n"
        for n in range(1, 200)
    )
    (folder / "book.txt").write_text(text)
    (folder / "precious.txt").write_text("Do not touch.\n")
    (folder / "lines.jsonl").write_text(
        "".join(json.dumps({"text": line}) + "\n" for line in text.splitlines()[:50])
    )
    (folder / "book.txt.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "book.txt.xz").write_bytes(lzma.compress(text.encode()))
    ByteTokenizer().save(folder / "bytes")
    here = Path.cwd()
    os.chdir(folder)
    try:
        done = main(
            [
                "prepare",
                "book.txt",
                "-o",
                "shards",
                "--tokenizer",
                "bytes",
                "--val-fraction",
                "0.2",
                "--workers",
                "1",
            ]
        )
        assert done == 0
        done = main(
            "train --data shards --out run --steps 6 --shape 1x16x2 --context 16 --batch-size 2 "
            "--eval-batches 1 "
            "--save-every 2 --device cpu".split()
        )
        assert done == 0
        assert main(["convert", "run", "model"]) == 0
        assert main(["convert", "run", "model-int8", "--dtype", "int8"]) == 0
        assert main(["convert", "run", "model-int4", "--dtype", "int4"]) == 0
        save_rows(load_checkpoint("model"), Path("model-rows"))
        shutil.rmtree("run/checkpoints/step-00000006")  # as if interrupted before it
        assert main(["convert", "run", "model.gguf"]) == 0
    finally:
        os.chdir(here)


def copy(template: Path, folder: Path) -> None:
    """A copy for a case, plus what cannot be copied: pipes, links, devices."""
    shutil.copytree(template, folder)
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("missing/file")
    (folder / "file").write_text("")
    with suppress(OSError):  # devices of our own, if the tests run as root
        os.mknod(folder / "full", stat.S_IFCHR | 0o666, os.makedev(1, 7))
        os.mknod(folder / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))


def fingerprint(folder: Path, names: tuple[str, ...] = PROTECTED) -> dict[str, str]:
    """The hashes of the protected files."""
    found = {}
    for name in names:
        for path in sorted([folder / name, *(folder / name).rglob("*")]):
            if path.is_file() and path.name != "lock":
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
