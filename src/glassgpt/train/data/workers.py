"""Worker processes of `prepare`: which worker does which unit, and how they stop."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import connection, get_context, parent_process
from typing import Any

from glassgpt.files import read_json
from glassgpt.progress import Advance
from glassgpt.train.data.find_files import Unit
from glassgpt.train.data.shard_writer import PrepareConfig, process_unit, read_record

UNIT = 1 << 26  # bytes per unit and characters per shard, which bounds the memory used


class WorkerStopped(Exception):
    """Not an error: the parent asked the worker to stop."""


def process_units(config: PrepareConfig, workers: int | None, on_read: Advance) -> None:
    todo = []
    for number, unit in enumerate(config.units):
        if _is_done(config, number):
            on_read(sum(_weight(chunk.source.size, unit) for chunk in unit))
        else:
            todo.append(number)
    if workers is None:
        # A worker takes more than a second to start, so each should get at least 64 MiB of text.
        weight = sum(
            s.source.size * (3 if s.source.compression else 1) for n in todo for s in config.units[n]
        )
        workers = min(_cores(), 1 + weight // UNIT)
    workers = min(len(todo), workers)
    if workers <= 1:
        for number in todo:
            process_unit(config, number, on_read)
        return
    context = get_context("spawn")  # a fork would copy locks of other threads, such as the progress bar's
    read, stop = context.Value("q", 0), context.Event()
    with ProcessPoolExecutor(workers, context, _start_worker, (config, read, stop)) as pool:
        try:
            pending = {pool.submit(_process_unit_in_worker, number) for number in todo}
            seen = 0
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                now = read.value
                on_read(now - seen)
                seen = now
                for future in done:
                    future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _is_done(config: PrepareConfig, number: int) -> bool:
    """Whether all its records are there: a kill during the final clean-up may have removed some."""
    marker = config.folder / f"unit-{number:05d}.json"
    return marker.is_file() and all(
        read_record(config, number, shard) is not None for shard in range(read_json(marker)["shards"])
    )


def _weight(size: int, unit: Unit) -> int:
    return size if len(unit) > 1 or unit[0].stop is None else min(size, UNIT)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_in_worker: dict[str, Any] = {}  # how a pool's functions reach what its processes were started with


def _start_worker(config: PrepareConfig, read: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops the workers
    _in_worker.update(config=config, read=read, stop=stop)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _process_unit_in_worker(number: int) -> None:
    def on_read(n: int) -> None:
        if _in_worker["stop"].is_set():
            raise WorkerStopped
        with _in_worker["read"].get_lock():
            _in_worker["read"].value += n

    process_unit(_in_worker["config"], number, on_read)
