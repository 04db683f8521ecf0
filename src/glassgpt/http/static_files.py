"""The files of a page, served from the package. A path is looked up in a list: none leads elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request
from starlette.responses import Response

from glassgpt.http.errors import Refusal

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


def listed(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Every file of a known type below a folder, with its path."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from listed(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in TYPES:
            yield prefix + entry.name, entry


def install(app: FastAPI, folder: Traversable) -> None:
    """Serve a folder's files at /. Last of all routes: it answers every path that no other did."""

    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def file(path: str, request: Request) -> Response:
        wanted = "index.html" if path == "" else path
        found = next((entry for name, entry in listed(folder) if name == wanted), None)
        if found is None:
            raise Refusal(404, f"There is nothing at /{path[:200]}.")
        content = found.read_bytes()
        headers = {"etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=TYPES[wanted.rpartition(".")[2]], headers=headers)
