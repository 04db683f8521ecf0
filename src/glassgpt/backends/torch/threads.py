"""Parallel work on a CPU: every thread takes its own item.

Threads that share one small item wait for each other at every operation; on a busy machine that costs more
than the second core brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_over_threads(
    work: Callable[[Item], Result], items: Sequence[Item]
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each item with its result, in order. Close the generator if you leave it early (`closing`).

    With fewer items than torch has threads, several threads work on each.
    """
    n_threads = torch.get_num_threads()
    workers = max(1, min(n_threads, len(items)))
    torch.set_num_threads(n_threads // workers)
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(n_threads // workers,))
    try:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > 2 * workers:  # enough to keep all workers busy, and few results in memory
                first, result = waiting.popleft()
                yield first, result.result()
        for first, result in waiting:
            yield first, result.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_threads)
