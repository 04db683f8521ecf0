"""The settings of a server, with what limits each request."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from glassgpt.errors import SettingError
from glassgpt.generate.service.fair_queue import QueueLimits
from glassgpt.ranges import check_number, check_whole

LOGS = ("none", "requests", "prompts")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    host: str = "127.0.0.1"  # what it is bound to; decides how the Host header is checked
    api_key: str | None = None
    max_batch_size: int | None = None  # sequences computed together; None: what suits the device
    queue: QueueLimits = field(default_factory=QueueLimits)
    timeout: float = 600  # seconds for one request, from its arrival to its last token
    max_body_bytes: int = 4_000_000
    max_model_memory: int | None = None  # bytes; the least recently used models are unloaded above it
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    explorer: bool = False
    keep_minutes: float = 10  # how long the Explorer can open a finished request
    log: str = "none"

    def __post_init__(self) -> None:
        if self.max_batch_size is not None:
            check_whole("max_batch_size", self.max_batch_size, 1, 4096)
        check_whole("max_queue", self.queue.max_requests, 0, 1_000_000)
        check_whole("max_queue_tokens", self.queue.max_tokens, 0, 10**12)
        check_number("max_wait", self.queue.max_wait, 0, 10**6, "seconds; 30 is usual")
        check_number("timeout", self.timeout, 0, 10**6, "seconds; 600 is usual", above=True)
        check_number("keep_minutes", self.keep_minutes, 0, 10**6, "10 is usual")
        if self.log not in LOGS:
            raise SettingError(f"log {self.log!r} is not one of {', '.join(LOGS)}.")
        for origin in self.cors_origins:
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
