"""Work for all cores of a CPU: each takes a piece of its own.

Cores that share one small piece wait for each other at each of its steps; on a busy machine that costs more
than the second core brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def map_over_cores(
    work: Callable[[Piece], Result], pieces: Sequence[Piece]
) -> Generator[tuple[Piece, Result], None, None]:
    """Each piece with its result, in order. Close it when leaving it early (`contextlib.closing`).

    Where there are fewer pieces than cores that torch may use, several cores work on each.
    """
    cores = torch.get_num_threads()
    workers = max(1, min(cores, len(pieces)))
    torch.set_num_threads(cores // workers)
    waiting: deque[tuple[Piece, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(cores // workers,))
    try:
        for piece in pieces:
            waiting.append((piece, pool.submit(work, piece)))
            if len(waiting) > 2 * workers:  # enough that no core is idle, and no more results than that
                first, result = waiting.popleft()
                yield first, result.result()
        for first, result in waiting:
            yield first, result.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)
