"""The stand-in hub for uploads: a repository is made, files come by LFS or in the commit.

It checks what the real one checks: the token, the card's metadata, and each file's size and hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import ThreadingHTTPServer
from typing import Any

import yaml

from tests.weights.standin_hub import COMMIT, Handler, Hub

TOKEN = "hf_" + "x" * 30


class UploadHandler(Handler):
    commits: list[dict[str, Any]]
    stored: dict[str, bytes]  # by sha256

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        self.hub.log.append(("POST", path, None))
        answer = next((each for start, each in self.hub.instead.items() if path.startswith(start)), None)
        if answer is not None:
            self.reply(answer[0], json.loads(answer[1]))
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.reply(401, {"error": "Invalid credentials"})
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.validate(json.loads(body)["content"])
        elif "/preupload/" in path:
            self.preupload(json.loads(body)["files"])
        elif path.endswith("/info/lfs/objects/batch"):
            self.batch(json.loads(body)["objects"])
        elif "/commit/" in path:
            self.commit(path.removeprefix("/api/models/").split("/commit/")[0], body)
        else:
            self.reply(404, {"error": "Not found"})

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        wanted = self.path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == wanted
        self.stored[wanted] = data
        self.reply(200, {})

    def create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        known = repo in self.hub.repos
        self.hub.repos.setdefault(repo, {})
        self.reply(409 if known else 200, {"url": f"{self.hub.url}/{repo}", "private": asked.get("private")})

    def validate(self, card: str) -> None:
        try:
            values = yaml.safe_load(card.removeprefix("---\n").split("\n---")[0])
            errors = (
                [] if isinstance(values.get("tags", []), list) else [{"message": '"tags" must be an array'}]
            )
        except (yaml.YAMLError, AttributeError) as error:
            errors = [{"message": str(error)}]
        self.reply(400 if errors else 200, {"errors": errors, "warnings": []})

    def preupload(self, files: list[dict[str, Any]]) -> None:
        self.reply(
            200,
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] >= self.hub.large else "regular",
                        "shouldIgnore": False,
                    }
                    for file in files
                ]
            },
        )

    def batch(self, objects: list[dict[str, Any]]) -> None:
        made = [
            {**each, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{each['oid']}", "header": {}}}}
            for each in objects
        ]
        self.reply(200, {"transfer": "basic", "objects": made})

    def commit(self, repo: str, body: bytes) -> None:
        head, *operations = [json.loads(line) for line in body.splitlines() if line]
        files = dict(self.hub.repos[repo])
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                files[value["path"]] = self.stored[value["oid"]]
                assert len(files[value["path"]]) == value["size"]
        self.hub.repos[repo] = files
        self.commits.append({"repo": repo, "summary": head["value"]["summary"], "files": len(operations)})
        url = f"{self.hub.url}/{repo}/commit/{COMMIT}"
        self.reply(200, {"commitUrl": url, "commitOid": COMMIT, "success": True, "hookOutput": ""})

    def reply(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class UploadHub:
    """The server in a thread, for a `with` statement."""

    def __enter__(self) -> UploadHub:
        self.hub = Hub()
        self.commits: list[dict[str, Any]] = []
        members = {"hub": self.hub, "commits": self.commits, "stored": {}}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundUpload", (UploadHandler,), members))
        self.hub.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
