"""The queue in front of the engine: bounded in requests and tokens, and fair between clients."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from glassgpt.errors import QueueFullError


@dataclass(frozen=True)
class QueueLimits:
    """How much may wait, and how long. Running requests do not count."""

    max_requests: int = 256
    max_tokens: int = 1_000_000  # in prompts and in the texts requested after them
    max_wait: float = 30.0  # expected seconds until a new request's first token


UNLIMITED = QueueLimits(max_requests=10**9, max_tokens=10**18, max_wait=math.inf)


class Waiting(Protocol):
    @property
    def client(self) -> str: ...
    @property
    def tokens(self) -> int: ...


Item = TypeVar("Item", bound=Waiting)


class FairQueue(Generic[Item]):
    """Clients take turns; the requests of one client keep their order.

    A client with a thousand requests delays another client's first request by one turn, not by a thousand.
    """

    def __init__(self, limits: QueueLimits | None = None) -> None:
        self.limits = QueueLimits() if limits is None else limits
        self._clients: OrderedDict[str, deque[Item]] = OrderedDict()  # the first has the next turn
        self._length = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        for items in self._clients.values():
            yield from items

    def push(self, items: Sequence[Item], room: int = 0) -> None:
        """Append all items or none. `room` is the number that can start at once, so that they do not wait.

        An empty queue accepts any number: a batch larger than the limit would never be admitted.
        """
        if self._length:
            tokens = self.tokens + sum(item.tokens for item in items)
            if self._length + len(items) > self.limits.max_requests + room:
                raise QueueFullError(
                    f"{self._length} requests are already waiting; at most {self.limits.max_requests} may. "
                    "Try again in a moment."
                )
            if tokens > self.limits.max_tokens:
                raise QueueFullError(
                    f"{self.tokens:,} tokens are already waiting; at most {self.limits.max_tokens:,} may. "
                    "Try again in a moment."
                )
        for item in items:
            self._clients.setdefault(item.client, deque()).append(item)
            self._length += 1
            self.tokens += item.tokens

    def ahead(self, client: str) -> Iterator[Item]:
        """The items that come before a client's next one."""
        turns = len(self._clients.get(client, ())) + 1
        for other, items in self._clients.items():
            yield from items if other == client else islice(items, turns)

    def peek(self) -> Item | None:
        """The item whose turn it is."""
        return next(iter(self._clients.values()))[0] if self._clients else None

    def end_turn(self, remove: bool) -> None:
        """Remove the item whose turn it was, or keep it for its client's next turn."""
        client, items = next(iter(self._clients.items()))
        if remove:
            self._forget(items.popleft())
        self._clients.move_to_end(client)
        if not items:
            del self._clients[client]

    def remove(self, item: Item) -> bool:
        """Remove an item from any place in the queue; False if it is not in it."""
        items = self._clients.get(item.client)
        if items is None or item not in items:
            return False
        items.remove(item)
        self._forget(item)
        if not items:
            del self._clients[item.client]
        return True

    def _forget(self, item: Item) -> None:
        self._length -= 1
        self.tokens -= item.tokens
