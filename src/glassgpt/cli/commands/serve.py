"""`glassgpt serve`: completions over HTTP, for the clients of OpenAI's API."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassgpt.cli import terminal
from glassgpt.cli.listening import check_host, importing_server, listen, make_url, network_url
from glassgpt.cli.loading import Device, Dtype, load
from glassgpt.cli.parser.options import Flag
from glassgpt.generate.service.fair_queue import QueueLimits
from glassgpt.ranges import check_number

if TYPE_CHECKING:
    from glassgpt.gpt import GPT
    from glassgpt.serve.settings import ServerSettings

PORT = 8000


def command(
    *,
    model: Annotated[
        tuple[str, ...],
        Flag(
            "a model, or NAME=MODEL to give it a name; repeat it for several, the first is the default",
            "MODEL",
            default="default",
        ),
    ] = (),
    host: Annotated[
        str, Flag("address to listen on; 0.0.0.0 is open to the network", "ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, Flag("port to listen on; 0 for any free one", "N")] = PORT,
    api_key: Annotated[
        str | None,
        Flag(
            "clients must send it; KEY,KEY for several; prefer the variable GLASSGPT_API_KEY, which other "
            "users cannot see",
            "KEY",
            default="none",
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None, Flag("sequences computed together", "N", default="16 on a CPU, 64 on a GPU")
    ] = None,
    max_wait: Annotated[
        float, Flag("seconds that a request may have to wait; one that would wait longer gets 429", "S")
    ] = 30,
    max_queue: Annotated[int, Flag("prompts that may wait; further ones get 429", "N")] = 256,
    max_queue_tokens: Annotated[
        int, Flag("total prompt and completion tokens that may wait", "N")
    ] = 1_000_000,
    timeout: Annotated[float, Flag("seconds for one request", "S")] = 600,
    drain_timeout: Annotated[
        float,
        Flag("seconds for admitted requests after SIGTERM or Ctrl-C; a second signal ends at once", "S"),
    ] = 30,
    max_model_memory: Annotated[
        float | None,
        Flag("GB for all models; the least recently used are unloaded above it", "GB", default="no limit"),
    ] = None,
    cors_origin: Annotated[
        tuple[str, ...], Flag("a page's origin that may send requests; repeatable", "URL", default="none")
    ] = (),
    allowed_host: Annotated[
        tuple[str, ...],
        Flag("a further name in the Host header, for a proxy; repeatable", "NAME", default="none"),
    ] = (),
    explorer: Annotated[
        bool, Flag("the Explorer at /explorer/, for the latest requests with their text")
    ] = False,
    keep_minutes: Annotated[float, Flag("how long the Explorer can open a request", "N")] = 10,
    log: Annotated[
        str, Flag("none, requests (a line of JSON each), prompts (with their text)", "WHAT")
    ] = "none",
    device: Device = None,
    dtype: Dtype = None,
) -> int:
    """Serve completions to the clients of OpenAI's API: POST /v1/completions, with scoring by echo and
    logprobs; see docs/serve.md. It is ready when GET /health is 200. SIGTERM and Ctrl-C let admitted requests
    finish."""
    check_host(host)
    with importing_server("serve"):
        from glassgpt.serve.app import make_app
        from glassgpt.serve.models import ModelPool, find_models
        from glassgpt.serve.server import run
        from glassgpt.serve.settings import ServerSettings
    if max_model_memory is not None:
        check_number("--max-model-memory", max_model_memory, 0, 10**6, "gigabytes", above=True)
    check_number("--drain-timeout", drain_timeout, 0, 10**6, "seconds; 30 is usual")
    settings = ServerSettings(
        host=host,
        api_key=os.environ.get("GLASSGPT_API_KEY") if api_key is None else api_key,
        max_batch_size=max_batch_size,
        queue=QueueLimits(max_queue, max_queue_tokens, max_wait),
        timeout=timeout,
        max_model_memory=None if max_model_memory is None else int(max_model_memory * 1e9),
        cors_origins=cors_origin,
        allowed_hosts=allowed_host,
        explorer=explorer,
        keep_minutes=keep_minutes,
        log=log,
    )

    def load_model(path: Path) -> GPT:
        return load(str(path), device, dtype, batch_size=16 if max_batch_size is None else max_batch_size)

    with listen(host, port) as listener:  # before a download: a port that is in use is known at once

        def announce() -> None:
            port = listener.getsockname()[1]
            elsewhere = network_url(host, port)
            if elsewhere is not None:
                terminal.note(f"on other machines of the network: {elsewhere}v1")
            print(f"{make_url(host, port)}v1", flush=True)
            terminal.note("serving at this URL; press Ctrl-C to stop")

        pool = ModelPool(
            find_models(model if model else ("default",), progress=terminal.progress),
            load_model,
            max_batch_size=max_batch_size,
            queue=settings.queue,
            max_memory=settings.max_model_memory,
        )
        warn_if_open(settings)
        if log != "none":
            log_to_stderr()
        raise_file_limit()
        run(make_app(pool, settings), listener, drain_timeout=drain_timeout, on_start=announce)
    return 0


def warn_if_open(settings: ServerSettings) -> None:
    from glassgpt.http.middleware import is_loopback

    if not is_loopback(settings.host) and settings.api_key is None:
        terminal.note(
            f"warning: with --host {settings.host} and no API key anyone who can reach this machine can use "
            "the model" + (", and read the prompts that others sent" if settings.explorer else "")
        )


def log_to_stderr() -> None:
    logger = logging.getLogger("glassgpt.serve")
    logger.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)


def raise_file_limit() -> None:
    """A connection is an open file, and the usual limit of 1,024 leaves few for anything else."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
