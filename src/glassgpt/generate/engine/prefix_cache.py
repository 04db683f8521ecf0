"""The rows of the KV cache: which are free, and which beginnings of texts they still hold.

A released row keeps its prompt until another sequence needs the row. A new prompt that begins like one of
these copies that beginning instead of reading it again. This needs no memory beyond the cache itself.

Only whole chunks are shared. A prompt is always read in the same chunks, cut at multiples of the chunk size,
and the keys and values of a chunk depend only on its tokens and those before it. So a copied beginning has,
bit for bit, the numbers that reading it would give, and no text depends on the contents of the cache.

A copied prompt is faster, which reveals that somebody sent its beginning before. So each text has a scope (in
the server: its client), and only texts of the same scope share.
"""

from __future__ import annotations

from collections.abc import Sequence

ROWS_TOGETHER = 4  # torch on a CPU computes rows in fours, up to the highest in use: low rows come first


class PrefixCache:
    def __init__(self, rows: int, chunk: int, enabled: bool = True) -> None:
        self.chunk = chunk
        self.enabled = enabled
        self.free = set(range(rows))
        self._held: list[list[int]] = [[] for _ in range(rows)]  # whole chunks, from position 0 on
        self._scopes = [""] * rows  # of these beginnings
        self._used = [0] * rows  # when each row was last taken
        self._clock = 0

    def take(self, ids: Sequence[int], scope: str = "") -> int:
        """A free row for a text: preferably one with its beginning, otherwise the one least worth keeping."""
        lowest = min(self.free) // ROWS_TOGETHER
        candidates = [row for row in self.free if row // ROWS_TOGETHER == lowest]
        row = min(candidates, key=lambda row: (*self._loss(row, ids, scope), self._used[row], row))
        if self._scopes[row] != scope:
            self._scopes[row], self._held[row] = scope, []
        self.free.remove(row)
        self._clock += 1
        self._used[row] = self._clock
        return row

    def _loss(self, row: int, ids: Sequence[int], scope: str) -> tuple[bool, int]:
        """Whether writing this text there would lose something, and minus the length that could be kept."""
        held = self._held[row]
        common = self._common(held, ids) if self._scopes[row] == scope else 0
        elsewhere = any(
            len(other) >= len(held) and other[: len(held)] == held
            for i, other in enumerate(self._held)
            if i != row and self._scopes[i] == self._scopes[row]
        )
        return common < len(held) and not elsewhere, -common

    def release(self, row: int) -> None:
        self.free.add(row)

    def find(self, ids: Sequence[int], scope: str = "") -> tuple[int, int]:
        """The row with the longest beginning of a text, and its length. The last token must still be read."""
        if not self.enabled:
            return -1, 0
        lengths = [
            self._common(held, ids[:-1]) if owner == scope else 0
            for held, owner in zip(self._held, self._scopes, strict=True)
        ]
        length = max(lengths)
        return lengths.index(length), length

    def keep(self, row: int, ids: Sequence[int]) -> None:
        """Record the text that a row holds, from position 0 on. Only whole chunks count."""
        whole = len(ids) // self.chunk * self.chunk if self.enabled else 0
        self._held[row] = list(ids[:whole])

    def keep_like(self, row: int, source: int) -> None:
        """Record that a row is a copy of another."""
        self._held[row] = self._held[source]

    def clear(self) -> None:
        """Free all rows and forget their texts."""
        self.free = set(range(len(self._held)))
        self._held = [[] for _ in self._held]

    def _common(self, held: list[int], ids: Sequence[int]) -> int:
        """The length of the common beginning of two texts, in whole chunks."""
        length = 0
        while (
            length < len(held)
            and length + self.chunk <= len(ids)
            and held[length : length + self.chunk] == list(ids[length : length + self.chunk])
        ):
            length += self.chunk
        return length
