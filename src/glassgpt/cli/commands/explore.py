"""`glassgpt explore`: the page that shows a token's journey, served from this machine to its own browser."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parse import flag
from glassgpt.cli.text import checked_prompt
from glassgpt.errors import UserError

if TYPE_CHECKING:
    import uvicorn

PORT = 8124
TRIES = 20  # ports that are looked at when nobody asked for one


def command(
    text: Annotated[
        Positional[str | None], flag("what to look at; - reads stdin", "[TEXT]", default="an example")
    ] = None,
    *,
    model: Model = "default",
    compare: Annotated[
        str | None, flag("a second model, to see both on the same text", "MODEL", default="none")
    ] = None,
    host: Annotated[str, flag("where to listen; 0.0.0.0 lets the whole network in", "ADDRESS")] = "127.0.0.1",
    port: Annotated[
        int | None, flag("which port; 0 takes any that is free", "N", default=f"{PORT}, or the next free one")
    ] = None,
    no_browser: Annotated[bool, flag("print the address and open nothing", default="")] = False,
    device: Device = None,
    dtype: Dtype = None,
) -> int:
    """Open a page in the browser that shows every step from a text to its next word. Ctrl-C ends it."""
    text = checked_prompt(text, "explore")
    if not host.strip():  # to the system that is every address there is
        raise UserError("--host is empty; is a shell variable unset? Leave it out to listen on 127.0.0.1.")
    try:
        from glassgpt.explorer.app import make_app
        from glassgpt.http.connection_limits import make_uvicorn_config
        from glassgpt.http.middleware import is_loopback
    except ModuleNotFoundError as error:
        needed = ("fastapi", "starlette", "orjson", "uvicorn")
        if error.name is None or error.name.partition(".")[0] not in needed:
            raise
        raise UserError(
            f"explore needs {error.name}, which is not installed. Type: pip install 'glassgpt[serve]'"
        ) from None
    listener = listen(host, port)
    gpt = load(model, device, dtype)
    second = None if compare is None else load(compare, device, dtype)
    app = make_app(gpt, second, host=host)
    url = address(host, listener.getsockname()[1])
    if not is_loopback(host):
        terminal.note(
            f"warning: with --host {host} everybody who reaches this machine over the network can read what "
            "the page shows and ask the model"
        )
    if text is not None:
        url += "#text=" + quote(text, safe="")
    serve(make_uvicorn_config(app), listener, url, open_browser=not no_browser)
    return 0


def listen(host: str, port: int | None) -> socket.socket:
    """A socket on the port that was asked for, or on the first free one from PORT on."""
    if port is not None and not 0 <= port < 65536:
        raise UserError(f"--port {port} is no port. Write a number from 0 to 65535, or leave it out.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else range(PORT, PORT + TRIES):
        listener = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # there it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if isinstance(error, socket.gaierror) or error.errno == 99:  # EADDRNOTAVAIL
                raise UserError(
                    f"--host {host} is no address of this machine. Leave it out to listen on 127.0.0.1."
                ) from None
            if isinstance(error, PermissionError):
                raise UserError(f"--port {number} is not allowed to you. Choose one above 1023.") from None
            if port is not None:
                raise UserError(
                    f"--port {port} is in use by another program. Choose another, or leave --port out."
                ) from None
    raise UserError(
        f"the ports from {PORT} to {PORT + TRIES - 1} are all in use. Choose another with --port."
    )


def address(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


def serve(config: uvicorn.Config, listener: socket.socket, url: str, open_browser: bool) -> None:
    """Serve until Ctrl-C. The address is printed when the page can be opened."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                print(url, flush=True)
                terminal.note("the Explorer is at this address; Ctrl-C ends it")
                if open_browser:
                    show_in_browser(url)

    server = Server(config)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn closes first, and then raises the signal again
        pass
    finally:
        listener.close()


def show_in_browser(url: str) -> None:
    """In a thread: some browsers hold their caller until they are closed."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
