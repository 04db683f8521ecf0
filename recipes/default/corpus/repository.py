"""Files out of a bare git repository, one process for all of them."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Blob(NamedTuple):
    oid: str
    path: str


class Repository:
    """MIRROR/owner+name, at one commit. Objects that a partial copy lacks are passed over."""

    def __init__(self, mirror: Path, name: str, commit: str) -> None:
        folder = mirror / name.replace("/", "+")
        candidates = (folder / "repo" / ".git", folder / "repo", folder / ".git", folder)
        found = [path for path in candidates if (path / "HEAD").is_file()]
        if not found:
            raise SystemExit(
                f"{folder}: no git repository there; git clone https://github.com/{name} {folder}"
            )
        self.name, self.commit = name, commit
        self._git = ["git", f"--git-dir={found[0]}"]
        self._environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = [*self._git, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, env=self._environment)
        if done.returncode:
            raise SystemExit(
                f"{self.name}: git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}"
            )
        return done.stdout

    def files(self, under: str = "") -> list[Blob]:
        """Every file of the commit below a path."""
        listing = self._run("ls-tree", "-r", "-z", self.commit, *([under] if under else []))
        blobs = []
        for row in listing.split(b"\0"):
            if row:
                about, path = row.split(b"\t", 1)
                blobs.append(Blob(about.split()[2].decode(), path.decode("utf-8", "replace")))
        return blobs

    def history(self, under: str) -> list[Blob]:
        """Every version of every file below a path, from the commit back to the first one."""
        listing = self._run("rev-list", "--objects", "--missing=allow-any", self.commit)
        blobs = []
        for row in listing.decode("utf-8", "replace").split("\n"):
            oid, _, path = row.partition(" ")
            if path.startswith(under):
                blobs.append(Blob(oid, path))
        return blobs

    def longest_versions(self, under: str) -> list[Blob]:
        """Of every path's versions in the history the longest one."""
        blobs = self.history(under)
        sizes = self._run(
            "cat-file", "--batch-check", stdin="".join(f"{blob.oid}\n" for blob in blobs).encode()
        )
        best: dict[str, tuple[int, str]] = {}
        for blob, row in zip(blobs, sizes.decode().split("\n"), strict=False):
            match row.split():
                case [_, "blob", size]:
                    best[blob.path] = max(best.get(blob.path, (-1, "")), (int(size), blob.oid))
        return [Blob(oid, path) for path, (_, oid) in sorted(best.items())]

    def read(self, blobs: Iterable[Blob]) -> Iterator[tuple[str, str]]:
        """(path, text) of each file, in the given order."""
        wanted = list(blobs)
        with subprocess.Popen(
            [*self._git, "cat-file", "--batch"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment, bufsize=1 << 20,
        ) as process:  # fmt: skip
            stdin, stdout = process.stdin, process.stdout
            assert stdin is not None
            assert stdout is not None

            def ask() -> None:
                for blob in wanted:
                    stdin.write(blob.oid.encode() + b"\n")
                stdin.close()

            # A thread asks and this one reads: both pipes are bounded, one thread alone could block.
            threading.Thread(target=ask, daemon=True).start()
            for blob in wanted:
                header = stdout.readline().split()
                if len(header) != 3:  # "OID missing"
                    continue
                content = stdout.read(int(header[2]))
                stdout.read(1)
                if header[1] == b"blob":
                    yield blob.path, content.decode("utf-8", "replace").replace("\r", "")
