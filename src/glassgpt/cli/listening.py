"""What `explore` and `serve` need before a server starts: its packages, an address, a free port."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from glassgpt.errors import UserError

PORTS_TRIED = 20  # without --port


@contextmanager
def importing_server(command: str) -> Iterator[None]:
    """For the imports of a command's server: a package that is missing is a line for the user."""
    try:
        yield
    except ModuleNotFoundError as error:
        needed = ("fastapi", "starlette", "orjson", "uvicorn", "prometheus_client")
        if error.name is None or error.name.partition(".")[0] not in needed:
            raise
        raise UserError(
            f"{command} needs {error.name}, which is not installed. Type: pip install 'glassgpt[serve]'"
        ) from None


def check_host(host: str) -> None:
    if not host.strip():  # the system would bind every address
        raise UserError("--host is empty; is a shell variable unset? Omit it to listen on 127.0.0.1.")


def listen(host: str, port: int | None, first: int = 0) -> socket.socket:
    """A socket on the given port, or without one on the first free one from `first` on."""
    if port is not None and not 0 <= port < 65536:
        raise UserError(f"--port {port} is not a valid port. Use 0 to 65535, or omit it.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else range(first, first + PORTS_TRIED):
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
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise UserError(
                    f"--host {host} is not an address of this machine. Omit it to listen on 127.0.0.1."
                ) from None
            if isinstance(error, PermissionError):
                raise UserError(f"permission denied for --port {number}. Use a port above 1023.") from None
            if port is not None:
                raise UserError(f"--port {port} is already in use. Use another, or omit --port.") from None
    last = first + PORTS_TRIED - 1
    raise UserError(f"ports {first} to {last} are all in use. Choose another with --port.")


def make_url(host: str, port: int) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/"


def network_url(host: str, port: int) -> str | None:
    """What to open on another machine, if the server listens on all addresses of this one, and it has one."""
    if host not in ("0.0.0.0", "::"):
        return None
    address = network_address()
    return None if address is None else make_url(address, port)


def network_address() -> str | None:
    """This machine's address on its network: the one it would send from. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address reserved for documentation
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith(("127.", "0.")) else address
