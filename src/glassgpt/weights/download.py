"""Downloads one file from the hub into huggingface_hub's cache: resumable, and verified by its hash.

huggingface_hub restarts an interrupted download and does not verify the result. Here the partial file stays
in `blobs/` under its own name, the next attempt requests the rest, and a file with a wrong hash is removed
before any program can find it in the cache.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, UserError
from glassgpt.progress import Advance, Progress, no_progress

ATTEMPTS = 5  # in a row without any new byte
TIMEOUT = 10.0  # seconds without a response
MAX_RESPONSE_BYTES = 1 << 24  # of metadata: ten thousand files take 4 million
MAX_RESPONSE_SECONDS = 60.0
_CHUNK = 1 << 20


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


def download(file: RemoteFile, blobs: Path, lock: Path, progress: Progress = no_progress) -> Path:
    """Download the file into `blobs` under its hash, unless it is there."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    blob = blobs / file.hash
    part = blobs / f"{file.hash}.glassgpt.incomplete"
    blobs.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):  # a second program waits and finds the file complete
        if blob.is_file() and blob.stat().st_size == file.size:
            return blob
        arrived = part.stat().st_size if part.is_file() else 0
        if file.size - arrived > shutil.disk_usage(blobs).free:
            raise _disk_full(file, blobs)
        try:
            open_task = progress if file.size >= _CHUNK else no_progress  # small files take no time
            with open_task(file.name, file.size, unit="bytes") as advance:
                _receive(file, part, advance)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise _disk_full(file, blobs) from None
            raise
        _check_hash(file, part)
        os.replace(part, blob)
    return blob


def is_network_error(error: BaseException) -> bool:
    """Whether the connection failed (huggingface_hub changes HTTP libraries)."""
    library = type(error).__module__.split(".")[0]
    known = ("httpx", "httpcore", "idna")  # the last: a redirect to a host that has no name
    return isinstance(error, ConnectionError | TimeoutError) or library.startswith(known)


def get_metadata(url: str, timeout: float = TIMEOUT) -> bytes:
    """The body of a small response, with its size and time bounded; raises for an error status."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    headers = request_headers()
    with get_session().stream(
        "GET", url, headers=headers, timeout=timeout, follow_redirects=True
    ) as response:
        body = _bounded_body(response)
        _raise_for_status(response, body)
    return body


def request_headers() -> dict[str, str]:
    """The user's token, if there is one, and nothing about this machine. huggingface_hub's own headers name
    torch's version and whatever environment variables the endpoint asks about (/api/agent-harnesses)."""
    from huggingface_hub import constants, get_token

    from glassgpt import __version__

    headers = {"User-Agent": f"glassgpt/{__version__}", "Accept-Encoding": "identity"}
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token is not None:
        if not token.isascii():  # headers are
            raise UserError(
                "the token of the hub (HF_TOKEN, or the one that `hf auth login` stored) is not ASCII. "
                "Copy it again."
            )
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _bounded_body(response: Any) -> bytes:
    body, end = bytearray(), time.monotonic() + MAX_RESPONSE_SECONDS
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise FileFormatError(
                f"{response.url.host} sent more than {MAX_RESPONSE_BYTES:,} bytes; it is not the hub."
            )
        if time.monotonic() > end:
            raise TimeoutError(f"no complete response after {MAX_RESPONSE_SECONDS:.0f} seconds")
    return bytes(body)


def _raise_for_status(response: Any, body: bytes) -> None:
    """huggingface_hub reads the whole body of an error: pass it a bounded one."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    body_headers = {b"content-encoding", b"content-length", b"transfer-encoding"}
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in body_headers]
    answer = type(response)(response.status_code, headers=headers, content=body, request=response.request)
    try:
        hf_raise_for_status(answer)
    except OSError:  # all errors of the hub are, and those of the network
        raise
    except Exception:  # it does not check what it reads: lists for objects, JSON nested too deeply
        raise FileFormatError(
            f"{response.url.host} returned status {response.status_code} and an invalid response, so it is "
            "not the hub. If this network requires a login, open any page in a browser first."
        ) from None


def _receive(file: RemoteFile, part: Path, advance: Advance) -> None:
    attempts, reported = 0, 0
    part.touch()  # of an empty file nothing is received

    def report(arrived: int) -> None:
        nonlocal reported
        advance(arrived - reported)  # negative if the server starts over
        reported = arrived

    while (arrived := part.stat().st_size if part.is_file() else 0) < file.size:
        try:
            _receive_rest(file, part, arrived, report)
        except Exception as error:
            if not is_network_error(error):
                raise
            got_more = part.is_file() and part.stat().st_size > arrived
            attempts = 0 if got_more else attempts + 1
            if attempts >= ATTEMPTS:
                raise
            time.sleep(0.5 * attempts)


def _receive_rest(file: RemoteFile, part: Path, arrived: int, report: Callable[[int], None]) -> None:
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    headers = request_headers()
    if arrived > 0:
        headers["Range"] = f"bytes={arrived}-"
    stream = get_session().stream("GET", file.url, headers=headers, timeout=TIMEOUT, follow_redirects=True)
    with stream as response:
        if response.status_code >= 400:
            _raise_for_status(response, _bounded_body(response))
        announced = response.headers.get("Content-Length")
        if response.status_code == 206:
            span = response.headers.get("Content-Range", "")
            is_expected = span.startswith(f"bytes {arrived}-")
        else:  # the server sends the whole file
            arrived = 0
            is_expected = announced is None or announced == str(file.size)
        if not is_expected:  # a login page, say: keep the partial file
            raise ConnectionError(f"the response is not {file.name}")
        with open(part, "ab" if arrived > 0 else "wb") as target:
            for chunk in response.iter_bytes():  # without a chunk size, which would delay up to that much
                target.write(chunk[: file.size - arrived])
                arrived += len(chunk)
                report(min(arrived, file.size))
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
            f"{file.name} is damaged: its hash is {hasher.hexdigest()[:12]}..., the hub's "
            f"{file.hash[:12]}.... It was removed. Try again."
        )


def _disk_full(file: RemoteFile, blobs: Path) -> UserError:
    return UserError(
        f"{file.name} needs {file.size:,} bytes in {blobs}, and the disk is full. "
        "Free some space, or set HF_HUB_CACHE to a folder on another disk."
    )
