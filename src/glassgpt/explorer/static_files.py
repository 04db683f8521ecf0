"""A page's files, served from the package. A path is looked up in a list, so none can lead elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request
from starlette.responses import Response

from glassgpt.http.errors import ApiError

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


def list_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Every file of a known type below a folder, with its path."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from list_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in MEDIA_TYPES:
            yield prefix + entry.name, entry


def add_static_files(app: FastAPI, folder: Traversable) -> None:
    """Serve a folder's files at /. Add it after all other routes: it matches every path."""

    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def get_file(path: str, request: Request) -> Response:
        name = "index.html" if path == "" else path
        file = dict(list_files(folder)).get(name)
        if file is None:
            raise ApiError(404, f"Not file: /{path[:200]}.")
        content = file.read_bytes()
        headers = {"etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
        if name.endswith(".svg"):  # Chromium asks for the icon after each change of the address
            headers["cache-control"] = "max-age=3600"
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)
