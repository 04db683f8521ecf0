"""`glassgpt serve`: completions over HTTP, for the clients of OpenAI's API."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.listening import check_host, importing_server, listen, make_url, network_url
from glassgpt.cli.loading import Device, Dtype, load
from glassgpt.cli.parser.options import Flag, OmitArgPrefixes
from glassgpt.serve.settings import ServerSettings

if TYPE_CHECKING:
    from glassgpt.gpt import GPT

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
    lora: Annotated[
        tuple[str, ...],
        Flag(
            "an adapter of the first model, which requests choose by this name; repeat it for several",
            "NAME=FOLDER",
            default="none",
        ),
    ] = (),
    settings: OmitArgPrefixes[ServerSettings] = ServerSettings(),  # noqa: B008  (frozen)
    port: Annotated[int, Flag("port to listen on; 0 for any free one", "N")] = PORT,
    device: Device = None,
    dtype: Dtype = None,
) -> int:
    """Serve completions to the clients of OpenAI's API: POST /v1/completions, with scoring by echo and
    logprobs; see docs/serve.md. It is ready when GET /health is 200. SIGTERM and Ctrl-C let admitted requests
    finish."""
    check_host(settings.host)
    with importing_server("serve"):
        from glassgpt.serve.app import make_app
        from glassgpt.serve.models import ModelPool, find_models
        from glassgpt.serve.server import run
    if settings.api_key is None:
        settings = replace(settings, api_key=os.environ.get("GLASSGPT_API_KEY"))
    batch_size = settings.max_batch_size

    def load_model(path: Path) -> GPT:
        return load(str(path), device, dtype, batch_size=16 if batch_size is None else batch_size)

    with listen(settings.host, port) as listener:  # before a download: a port that is in use is known at once

        def announce() -> None:
            port = listener.getsockname()[1]
            elsewhere = network_url(settings.host, port)
            if elsewhere is not None:
                terminal.note(f"on other machines of the network: {elsewhere}v1")
            print(f"{make_url(settings.host, port)}v1", flush=True)
            terminal.note("serving at this URL; press Ctrl-C to stop")

        pool = ModelPool(
            find_models(model if model else ("default",), progress_bar.progress, lora),
            load_model,
            max_batch_size=batch_size,
            queue=settings.queue,
            max_memory=settings.max_model_bytes,
        )
        warn_if_open(settings)
        if settings.log != "none":
            log_to_stderr()
        raise_file_limit()
        run(make_app(pool, settings), listener, drain_timeout=settings.drain_timeout, on_start=announce)
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
