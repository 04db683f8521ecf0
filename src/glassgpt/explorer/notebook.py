"""The Explorer in a notebook's cell: `gpt.explore("text")`.

A notebook's output is a page of its own, so the Explorer is a frame in it. Its server runs in a thread of the
kernel, on the loopback interface, one for each model. Where the notebook is somewhere else (JupyterHub), the
frame goes through jupyter-server-proxy if that is installed, on the notebook's own port; in Colab through
Colab's own proxy.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from html import escape
from importlib.util import find_spec
from urllib.parse import quote
from weakref import WeakKeyDictionary

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassgpt.errors import UserError
from glassgpt.explorer.app import make_app
from glassgpt.explorer.models import find_models
from glassgpt.gpt import GPT
from glassgpt.http.connection_limits import make_uvicorn_config
from glassgpt.http.server import QuietServer
from glassgpt.ranges import check_whole

# Who may show the page in a frame: notebooks on this machine, in VS Code and in Colab. No other site may.
ANCESTORS = (
    "'self' http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview: vscode-file: "
    "https://*.vscode-cdn.net https://colab.research.google.com https://*.googleusercontent.com"
)
NOBODY = "frame-ancestors 'none'"
START_SECONDS = 60.0

_servers: WeakKeyDictionary[GPT, NotebookServer] = WeakKeyDictionary()
_lock = threading.Lock()


class ExplorerFrame:
    """What a notebook shows for `gpt.explore`: the page in a frame."""

    def __init__(self, port: int, fragment: str, height: int) -> None:
        self.port, self.fragment, self.height = port, fragment, height

    @property
    def url(self) -> str:
        """The address, for a browser on this machine."""
        return f"http://127.0.0.1:{self.port}/{self.fragment}"

    @property
    def source(self) -> str:
        """The address in the frame: through the notebook's own server where that passes requests on."""
        prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
        if prefix is not None and find_spec("jupyter_server_proxy") is not None:
            return f"{prefix.rstrip('/')}/proxy/{self.port}/{self.fragment}"
        return self.url

    def _repr_html_(self) -> str:
        source = escape(self.source, quote=True)
        return (
            f'<iframe src="{source}" width="100%" height="{self.height}" style="border: 0" '
            f'title="GlassGPT Explorer" allow="clipboard-write"></iframe>'
        )

    def _ipython_display_(self) -> None:
        if "google.colab" in sys.modules:
            from google.colab import output  # type: ignore[import-not-found, import-untyped, unused-ignore]

            output.serve_kernel_port_as_iframe(self.port, path=f"/{self.fragment}", height=self.height)
            return
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        data = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        display(data, raw=True)  # type: ignore[no-untyped-call, unused-ignore]

    def __repr__(self) -> str:
        return f"ExplorerFrame({self.url!r})"


class NotebookServer:
    """The Explorer of a model in a thread, until the process ends."""

    def __init__(self, gpt: GPT) -> None:
        app = FrameableMiddleware(make_app(gpt, others=find_models([gpt.name])))
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        started = threading.Event()
        self._server = QuietServer(make_uvicorn_config(app), started.set)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="glassgpt-explorer", daemon=True
        )
        self._thread.start()
        if not started.wait(START_SECONDS):
            raise UserError("the Explorer did not start. Restart the notebook's kernel.")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(START_SECONDS)


class FrameableMiddleware:
    """ASGI middleware: notebooks may show the page in a frame."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def allow(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                policy = headers.get("content-security-policy", NOBODY)
                headers["content-security-policy"] = policy.replace(NOBODY, f"frame-ancestors {ANCESTORS}")
            await send(message)

        await self.app(scope, receive, allow if scope["type"] == "http" else send)


def explore(gpt: GPT, text: str | None = None, height: int = 760) -> ExplorerFrame:
    """The Explorer of a model, with a text, for a cell of a notebook."""
    check_whole("height", height, 200, 10_000, "760 is usual")
    with _lock:
        server = _servers.get(gpt)
        if server is None:
            server = _servers[gpt] = NotebookServer(gpt)
    fragment = "" if text is None else f"#text={quote(text, safe='')}"
    return ExplorerFrame(server.port, fragment, height)


def close_servers() -> None:
    """End all servers of this process; a test does."""
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()
