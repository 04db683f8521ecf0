"""Scores on disk: an interrupted evaluation resumes, and no window is scored twice.

One append-only file per model, dtype and device type. A record is a window's key, its number of scored
tokens, a checksum, their log-probabilities (float64) and flags (uint8). A record truncated by a kill is
dropped when the file is next opened.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from glassgpt.backends.protocol import ScoreRequest, TokenScores

MAGIC = b"glassgpt scores 2\n"
HEAD = struct.Struct("<16sII")  # key, number of tokens, checksum


def cache_key(window: ScoreRequest, excluded: bytes = b"") -> bytes:
    """The excluded tokens are part of the key only where they matter."""
    hasher = hashlib.blake2b(window.ids.astype("<i8").tobytes(), digest_size=16)
    hasher.update(b"%d" % window.first)
    if window.exclude:
        hasher.update(excluded)
    return hasher.digest()


class ScoreCache:
    """Scores by key, in memory and, with a path, in a file. If the file cannot be written, `problem` says
    why, and the evaluation cannot be resumed."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.problem: str | None = None
        self._known: dict[bytes, TokenScores] = {}
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._read(path)
            path.open("ab").close()
        except OSError as error:
            self._keep_in_memory(error)

    def _keep_in_memory(self, error: OSError) -> None:
        self.problem = f"the score cache {self.path} cannot be written ({error.strerror})"
        self.path = None

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def __getitem__(self, key: bytes) -> TokenScores:
        return self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def add(self, scores_by_key: list[tuple[bytes, TokenScores]]) -> None:
        """Add scores. Once this returns, they survive a kill."""
        self._known.update(scores_by_key)
        if self.path is None:
            return
        records = b"".join(_record(key, scores) for key, scores in scores_by_key)
        # One write at the end of the file: concurrent evaluations of a model do not interleave records.
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, records)
            finally:
                os.close(file)
        except OSError as error:
            self._keep_in_memory(error)

    def _read(self, path: Path) -> None:
        data = path.read_bytes() if path.exists() else b""
        place = len(MAGIC)
        if not data.startswith(MAGIC):
            path.write_bytes(MAGIC)
            return
        while place + HEAD.size <= len(data):
            key, n, checksum = HEAD.unpack_from(data, place)
            payload = data[place + HEAD.size : place + HEAD.size + 9 * n]
            if len(payload) < 9 * n or zlib.crc32(payload) != checksum:
                break
            flags = np.frombuffer(payload, np.uint8, n, 8 * n)
            logprobs = np.frombuffer(payload, "<f8", n)
            self._known[key] = TokenScores(logprobs, (flags & 1) > 0, (flags & 2) > 0)
            place += HEAD.size + 9 * n
        if place < len(data):
            os.truncate(path, place)


def _record(key: bytes, scores: TokenScores) -> bytes:
    flags = scores.greedy.astype(np.uint8) | scores.greedy_allowed.astype(np.uint8) << 1
    payload = scores.logprobs.astype("<f8").tobytes() + flags.tobytes()
    return HEAD.pack(key, len(scores.logprobs), zlib.crc32(payload)) + payload
