"""A stand-in for the hub on this machine: the few answers that a download needs, and the faults to survive.

It speaks what the real one speaks: the description of a model with the hash of every file, files by HEAD and
GET with ranges, ETag, X-Repo-Commit, and for large files a redirect to another address with X-Linked-Etag.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """What is served, what goes wrong, and what was asked for."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    large: int = 4096  # files from this size on are "LFS": hashed by sha256, served from another address
    break_after: dict[str, list[int]] = field(default_factory=dict)  # file -> bytes sent before hanging up
    corrupt: set[str] = field(default_factory=set)  # files sent with one bit changed
    ignore_range: bool = False
    # What begins so is answered like this, whatever it is: status, body, headers
    instead: dict[str, tuple[int, bytes, dict[str, str]]] = field(default_factory=dict)
    log: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range
    url: str = ""

    def asked(self, method: str, name: str) -> list[str | None]:
        """The ranges of all requests of that kind for the bytes of a file."""
        wanted = ("/resolve/", "/cdn/")
        return [
            span
            for verb, path, span in self.log
            if verb == method and path.endswith(name) and any(kind in path for kind in wanted)
        ]


def hash_of(hub: Hub, data: bytes) -> str:
    if len(data) >= hub.large:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes; the second would wait 40 ms for an ACK
    hub: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.log.append((self.command, path, self.headers.get("Range")))
        reported = next(
            (answer for start, answer in self.hub.instead.items() if path.startswith(start)), None
        )
        if reported is not None:
            self.send(*reported)
        elif path.startswith("/api/models/"):
            self.describe(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            repo, rest = path[1:].split("/resolve/")
            revision, name = rest.split("/", 1)
            self.serve(repo, revision, name)
        elif path.startswith("/cdn/"):
            repo, name = path.removeprefix("/cdn/").rsplit("/", 1)
            self.send_file(name, self.hub.repos[repo][name], {})
        else:
            self.send(404, b"", {})

    def describe(self, rest: str) -> None:
        repo, _, revision = rest.partition("/revision/")
        if repo not in self.hub.repos:
            self.send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            return
        if revision not in ("", "main", COMMIT):
            self.send(404, b'{"error": "Revision not found"}', {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for name, data in self.hub.repos[repo].items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
            if len(data) >= self.hub.large:
                entry["lfs"] = {"sha256": hash_of(self.hub, data), "size": len(data), "pointerSize": 134}
            else:
                entry["blobId"] = hash_of(self.hub, data)
            siblings.append(entry)
        body = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0}
        self.send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def serve(self, repo: str, revision: str, name: str) -> None:
        files = self.hub.repos.get(repo)
        if files is None:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif name not in files:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            data = files[name]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hash_of(self.hub, data)}"'}
            if len(data) >= self.hub.large:
                headers["X-Linked-Etag"] = headers.pop("ETag")
                headers["X-Linked-Size"] = str(len(data))
                # Another host, as the real hub's storage is: clients follow a redirect within one host.
                storage = self.hub.url.replace("127.0.0.1", "localhost")
                self.send(302, b"", {**headers, "Location": f"{storage}/cdn/{repo}/{name}"})
            else:
                self.send_file(name, data, headers)

    def send_file(self, name: str, data: bytes, headers: dict[str, str]) -> None:
        if name in self.hub.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        span, status = self.headers.get("Range"), 200
        if span is not None and not self.hub.ignore_range:
            start = int(span.removeprefix("bytes=").split("-")[0])
            headers = {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            data, status = data[start:], 206
        faults = self.hub.break_after.get(name, [])
        if self.command == "GET" and faults:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data[: faults.pop(0)])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.send(status, data, headers)

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


class Running:
    """The server in a thread, for a `with` statement."""

    def __enter__(self) -> Hub:
        hub = Hub()
        handler = type("BoundHandler", (Handler,), {"hub": hub})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        hub.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return hub

    def __exit__(self, *exception: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
