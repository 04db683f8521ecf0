"""One file of the hub into the cache that huggingface_hub keeps: resumed, measured, hashed, then admitted.

huggingface_hub starts a file from its beginning when the program was stopped half-way, and trusts what it
received. Here the part that has arrived stays in `blobs/` under a name of its own, the next attempt asks for
the rest, and a file whose hash is not the hub's is removed before any program can find it in the cache.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, UserError

ATTEMPTS = 5  # in a row without a single new byte
TIMEOUT = 10.0  # seconds without an answer
ANSWER = 1 << 24  # bytes of an answer that is no file: ten thousand files are described in 4 million
PATIENCE = 60.0  # seconds for all of it
_CHUNK = 1 << 20

Progress = Callable[[int], None]  # told how many bytes of the file are there


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub describes it."""

    name: str
    url: str
    size: int
    hash: str  # sha256 for large files, git's sha1 for small ones; also the file's name in the cache

    def hasher(self) -> hashlib._Hash:
        if len(self.hash) == 64:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)


def download(file: RemoteFile, blobs: Path, lock: Path) -> Path:
    """Bring the file into `blobs` under its hash, unless it is there already."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    blob = blobs / file.hash
    part = blobs / f"{file.hash}.glassgpt.incomplete"
    blobs.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):  # of two programs that want the same file, one waits and finds it done
        if blob.is_file() and blob.stat().st_size == file.size:
            return blob
        arrived = part.stat().st_size if part.is_file() else 0
        if file.size - arrived > shutil.disk_usage(blobs).free:
            raise _disk_full(file, blobs)
        try:
            with _bar(file) as progress:
                _receive(file, part, progress)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise _disk_full(file, blobs) from None
            raise
        _check_hash(file, part)
        os.replace(part, blob)
    return blob


def is_network_error(error: BaseException) -> bool:
    """Whether the hub could not be reached or broke off (huggingface_hub changes HTTP libraries)."""
    library = type(error).__module__.split(".")[0]
    return isinstance(error, ConnectionError | TimeoutError) or library.startswith(("httpx", "httpcore"))


def ask(url: str, timeout: float = TIMEOUT) -> bytes:
    """What the hub answers, if it is no refusal and comes to an end."""
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    with get_session().stream(
        "GET", url, headers=headers, timeout=timeout, follow_redirects=True
    ) as response:
        body = _bounded_body(response)
        _raise_for_status(response, body)
    return body


def _bounded_body(response: Any) -> bytes:
    body, end = bytearray(), time.monotonic() + PATIENCE
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > ANSWER:
            raise FileFormatError(
                f"{response.url.host} answers with more than {ANSWER:,} bytes; it is no hub."
            )
        if time.monotonic() > end:
            raise TimeoutError(f"no end after {PATIENCE:.0f} seconds")
    return bytes(body)


def _raise_for_status(response: Any, body: bytes) -> None:
    """huggingface_hub reads the reason of a refusal from the whole body: it gets one that has an end."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    of_the_body = {"content-encoding", "content-length", "transfer-encoding"}
    headers = [(name, value) for name, value in response.headers.items() if name.lower() not in of_the_body]
    hf_raise_for_status(
        type(response)(response.status_code, headers=headers, content=body, request=response.request)
    )


def _receive(file: RemoteFile, part: Path, progress: Progress) -> None:
    attempts = 0
    while (arrived := part.stat().st_size if part.is_file() else 0) < file.size:
        try:
            _receive_rest(file, part, arrived, progress)
        except Exception as error:
            if not is_network_error(error):
                raise
            got_more = part.is_file() and part.stat().st_size > arrived
            attempts = 0 if got_more else attempts + 1
            if attempts >= ATTEMPTS:
                raise
            time.sleep(0.5 * attempts)


def _receive_rest(file: RemoteFile, part: Path, arrived: int, progress: Progress) -> None:
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if arrived > 0:
        headers["Range"] = f"bytes={arrived}-"
    stream = get_session().stream("GET", file.url, headers=headers, timeout=TIMEOUT, follow_redirects=True)
    with stream as response:
        if response.status_code >= 400:
            _raise_for_status(response, _bounded_body(response))
        announced = response.headers.get("Content-Length")
        if response.status_code == 206:
            span = response.headers.get("Content-Range", "")
            as_asked = span.startswith(f"bytes {arrived}-")
        else:  # the server sends everything again
            arrived = 0
            as_asked = announced is None or announced == str(file.size)
        if not as_asked:  # a login page, say: what has arrived must not be lost to it
            raise ConnectionError(f"the answer is not {file.name}")
        with open(part, "ab" if arrived > 0 else "wb") as target:
            for chunk in response.iter_bytes():  # as they come: a chunk size would hold back up to that much
                target.write(chunk[: file.size - arrived])
                arrived += len(chunk)
                progress(min(arrived, file.size))
                if arrived > file.size:
                    break
    if arrived < file.size:
        raise ConnectionError(f"{file.name} ended after {arrived:,} of {file.size:,} bytes")


def _check_hash(file: RemoteFile, part: Path) -> None:
    hasher = file.hasher()
    with open(part, "rb") as source:
        while chunk := source.read(_CHUNK):
            hasher.update(chunk)
    if hasher.hexdigest() != file.hash:
        part.unlink()
        raise FileFormatError(
            f"{file.name} arrived damaged: its hash is {hasher.hexdigest()[:12]}..., the hub's "
            f"{file.hash[:12]}.... It was removed; try again."
        )


def _disk_full(file: RemoteFile, blobs: Path) -> UserError:
    return UserError(
        f"{file.name} needs {file.size:,} bytes in {blobs}, and the disk is full. "
        "Free some space, or set HF_HUB_CACHE to a folder on another disk."
    )


@contextlib.contextmanager
def _bar(file: RemoteFile) -> Iterator[Progress]:
    """A progress bar on stderr, where that is a terminal and the file large enough to be waited for."""
    if not sys.stderr.isatty() or file.size < _CHUNK:
        yield lambda arrived: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(file.name, total=file.size)
        yield lambda arrived: bar.update(task, completed=arrived)
