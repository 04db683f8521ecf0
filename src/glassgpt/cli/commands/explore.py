"""`glassgpt explore`: the Explorer, served to the browser on this machine."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.options import Positional, flag
from glassgpt.cli.text import read_prompt
from glassgpt.errors import UserError

if TYPE_CHECKING:
    import uvicorn

PORT = 8124
PORTS_TRIED = 20  # without --port


def command(
    text: Annotated[
        Positional[str | None], flag("the text to explore; - reads stdin", "[TEXT]", default="an example")
    ] = None,
    *,
    model: Model = "default",
    compare: Annotated[
        str | None, flag("a second model to compare on the same text", "MODEL", default="none")
    ] = None,
    host: Annotated[
        str, flag("address to listen on; 0.0.0.0 is open to the network", "ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        flag("port to listen on; 0 for any free one", "N", default=f"{PORT}, or the next free one"),
    ] = None,
    no_browser: Annotated[bool, flag("print the URL without opening a browser", default="")] = False,
    device: Device = None,
    dtype: Dtype = None,
) -> int:
    """Open a page in the browser that shows every step from a text to its next token. Stop it with Ctrl-C."""
    text = read_prompt(text, "explore")
    if not host.strip():  # the system would bind every address
        raise UserError("--host is empty; is a shell variable unset? Omit it to listen on 127.0.0.1.")
    try:
        from glassgpt.explorer.app import make_app
        from glassgpt.explorer.models import find_models
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
    open_now = [each.name for each in (gpt, second) if each is not None]
    app = make_app(
        gpt,
        second,
        others=find_models(open_now),
        load=lambda name: load(name, device, dtype),  # what was typed holds for the page's picker, too
        host=host,
    )
    url = make_url(host, listener.getsockname()[1])
    if not is_loopback(host):
        terminal.note(
            f"warning: with --host {host} anyone who can reach this machine over the network can use the "
            "model and see what the page shows"
        )
    if text is not None:
        url += "#text=" + quote(text, safe="")
    serve(make_uvicorn_config(app), listener, url, open_browser=not no_browser)
    return 0


def listen(host: str, port: int | None) -> socket.socket:
    """A socket on the given port, or on the first free one from PORT on."""
    if port is not None and not 0 <= port < 65536:
        raise UserError(f"--port {port} is not a valid port. Use 0 to 65535, or omit it.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else range(PORT, PORT + PORTS_TRIED):
        # TCP by name: only then asyncio turns off Nagle's algorithm, for which the second part of a response
        # waits 40 ms until the client has acknowledged the first.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if sys.platform != "win32":  # there it would let two servers bind one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if isinstance(error, socket.gaierror) or error.errno == 99:  # EADDRNOTAVAIL
                raise UserError(
                    f"--host {host} is not an address of this machine. Omit it to listen on 127.0.0.1."
                ) from None
            if isinstance(error, PermissionError):
                raise UserError(f"permission denied for --port {number}. Use a port above 1023.") from None
            if port is not None:
                raise UserError(f"--port {port} is already in use. Use another, or omit --port.") from None
    raise UserError(f"ports {PORT} to {PORT + PORTS_TRIED - 1} are all in use. Choose another with --port.")


def make_url(host: str, port: int) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/"


def serve(config: uvicorn.Config, listener: socket.socket, url: str, open_browser: bool) -> None:
    """Serve until Ctrl-C. The URL is printed once the page can be opened."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                print(url, flush=True)
                terminal.note("the Explorer is running at this URL; press Ctrl-C to stop")
                if open_browser:
                    open_in_browser(url)

    server = Server(config)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn shuts down first, then raises the signal again
        pass
    finally:
        listener.close()


def open_in_browser(url: str) -> None:
    """In a thread: some browsers block the caller until they are closed."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
