"""The settings of a server, with what limits each request."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from glassgpt.errors import SettingError
from glassgpt.generate.service.fair_queue import QueueLimits
from glassgpt.ranges import check_number, check_whole

LOGS = ("none", "requests", "prompts")


# The comment beside a field is its help text on the command line.
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    # address to listen on; 0.0.0.0 is open to the network
    host: str = field(default="127.0.0.1", metadata={"metavar": "ADDRESS"})
    # clients must send it; KEY,KEY for several; prefer the variable GLASSGPT_API_KEY, which other users
    # cannot see
    api_key: str | None = field(default=None, metadata={"metavar": "KEY", "default": "none"})
    # sequences computed together
    max_batch_size: int | None = field(default=None, metadata={"default": "16 on a CPU, 64 on a GPU"})
    # seconds that a request may have to wait; one that would wait longer gets 429
    max_wait: float = field(default=30, metadata={"metavar": "S"})
    max_queue: int = 256  # prompts that may wait; further ones get 429
    max_queue_tokens: int = 1_000_000  # total prompt and completion tokens that may wait
    # seconds for one request, from its arrival to its last token
    timeout: float = field(default=600, metadata={"metavar": "S"})
    # seconds for admitted requests after SIGTERM or Ctrl-C; a second signal ends at once
    drain_timeout: float = field(default=30, metadata={"metavar": "S"})
    # bytes of a request; a larger one gets 413
    max_body_bytes: int = field(default=4_000_000, metadata={"option": False})
    # GB for all models; the least recently used are unloaded above it
    max_model_memory: float | None = field(default=None, metadata={"metavar": "GB", "default": "no limit"})
    # a page's origin that may send requests
    cors_origin: tuple[str, ...] = field(default=(), metadata={"metavar": "URL", "default": "none"})
    # a further name in the Host header, for a proxy
    allowed_host: tuple[str, ...] = field(default=(), metadata={"metavar": "NAME", "default": "none"})
    explorer: bool = False  # the Explorer at /explorer/, for the latest requests with their text
    # minutes for which the Explorer can open a finished request
    keep_minutes: float = field(default=10, metadata={"metavar": "N"})
    # none, requests (a line of JSON each), prompts (with their text)
    log: str = field(default="none", metadata={"metavar": "WHAT"})

    @property
    def queue(self) -> QueueLimits:
        return QueueLimits(self.max_queue, self.max_queue_tokens, self.max_wait)

    @property
    def max_model_bytes(self) -> int | None:
        return None if self.max_model_memory is None else int(self.max_model_memory * 1e9)

    def __post_init__(self) -> None:
        if self.max_batch_size is not None:
            check_whole("max_batch_size", self.max_batch_size, 1, 4096)
        check_whole("max_queue", self.max_queue, 0, 1_000_000)
        check_whole("max_queue_tokens", self.max_queue_tokens, 0, 10**12)
        check_number("max_wait", self.max_wait, 0, 10**6, "seconds; 30 is usual")
        check_number("timeout", self.timeout, 0, 10**6, "seconds; 600 is usual", above=True)
        check_number("--drain-timeout", self.drain_timeout, 0, 10**6, "seconds; 30 is usual")
        if self.max_model_memory is not None:
            check_number("--max-model-memory", self.max_model_memory, 0, 10**6, "gigabytes", above=True)
        check_number("keep_minutes", self.keep_minutes, 0, 10**6, "10 is usual")
        if self.log not in LOGS:
            raise SettingError(f"log {self.log!r} is not one of {', '.join(LOGS)}.")
        for origin in self.cors_origin:
            if not is_origin(origin):
                raise SettingError(
                    f"--cors-origin {origin!r} is not an origin such as https://example.org. Give one for "
                    "each page that may send requests."
                )
        if self.api_key is not None and not (self.api_key.strip(" ,") and self.api_key.isascii()):
            raise SettingError(
                "the API key is empty or not ASCII; clients could not send it. Choose another."
            )


def is_origin(text: str) -> bool:
    """Whether a browser could send it: a scheme and a host, without a path."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return (
        bool(parts.scheme and parts.hostname)
        and "*" not in text
        and text == f"{parts.scheme}://{parts.netloc}"
    )
