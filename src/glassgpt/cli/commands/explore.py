"""`glassgpt explore`: the Explorer, served to the browser on this machine."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from glassgpt.cli import terminal
from glassgpt.cli.listening import check_host, importing_server, listen, make_url, network_url
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.text import read_prompt

if TYPE_CHECKING:
    import uvicorn

PORT = 8124


def command(
    text: Annotated[
        Positional[str | None], Flag("the text to explore; - reads stdin", "[TEXT]", default="an example")
    ] = None,
    *,
    model: Model = "default",
    compare: Annotated[
        str | None, Flag("a second model to compare on the same text", "MODEL", default="none")
    ] = None,
    host: Annotated[
        str, Flag("address to listen on; 0.0.0.0 is open to the network", "ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        Flag("port to listen on; 0 for any free one", "N", default=f"{PORT}, or the next free one"),
    ] = None,
    no_browser: Annotated[bool, Flag("print the URL without opening a browser")] = False,
    device: Device = None,
    dtype: Dtype = None,
) -> int:
    """Open a page in the browser that shows every step from a text to its next token. Stop it with Ctrl-C."""
    text = read_prompt(text, "explore")
    check_host(host)
    with importing_server("explore"):
        from glassgpt.explorer.app import make_app
        from glassgpt.explorer.models import find_models
        from glassgpt.http.connection_limits import make_uvicorn_config
        from glassgpt.http.middleware import is_loopback
    listener = listen(host, port, first=PORT)
    gpt = load(model, device, dtype)
    second = None if compare is None else load(compare, device, dtype)
    open_now = [each.name for each in (gpt, second) if each is not None]
    app = make_app(
        gpt,
        second,
        others=find_models(open_now),
        load=lambda name: load(
            name, device, dtype
        ),  # the typed device and dtype also hold for the page's picker
        host=host,
    )
    port = listener.getsockname()[1]
    url, elsewhere = make_url(host, port), network_url(host, port)
    if not is_loopback(host):
        terminal.note(
            f"warning: with --host {host} anyone who can reach this machine over the network can use the "
            "model and see what the page shows"
        )
    state = "" if text is None else "#text=" + quote(text, safe="")
    if elsewhere is not None:
        terminal.note(f"on other machines of the network, open {elsewhere}{state}")
    serve(make_uvicorn_config(app), listener, url + state, open_browser=not no_browser)
    return 0


def serve(config: uvicorn.Config, listener: socket.socket, url: str, open_browser: bool) -> None:
    """Serve until Ctrl-C. The URL is printed once the page can be opened."""
    from glassgpt.http.server import QuietServer

    def announce() -> None:
        print(url, flush=True)
        terminal.note("the Explorer is running at this URL; press Ctrl-C to stop")
        if open_browser:
            open_in_browser(url)

    with suppress(KeyboardInterrupt):  # the signal that ended it
        QuietServer(config, announce).run_until_signal(listener)


def open_in_browser(url: str) -> None:
    """In a thread: some browsers block the caller until they are closed."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
