"""A site's service worker: the page without a network, and never files of two versions in one tab."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.explorer.test_page_files import PAGE

INDEX = """<!doctype html><title>site</title><p id="says"></p><script type="module">
import { version } from "./main.js";
document.getElementById("says").textContent = version;
globalThis.later = async () => (await import("./late.js")).version;
globalThis.model = async () => (await (await fetch("models/tiny/model.bin")).arrayBuffer()).byteLength;
const list = await (await fetch("files.json", { cache: "no-store" })).json();
const workers = navigator.serviceWorker;
const registration = await workers.register(`sw.js?version=${list.version}`, { updateViaCache: "none" });
if (!workers.controller) (await workers.ready).active.postMessage({ claim: version });
globalThis.registration = registration;
</script>"""


def publish(folder: Path, version: str) -> None:
    """A page of this version: its module, one that is imported later, and a model."""
    shutil.copy(PAGE / "sw.js", folder / "sw.js")
    (folder / "models" / "tiny").mkdir(parents=True, exist_ok=True)
    files = {
        "index.html": INDEX,
        "main.js": f'export const version = "{version}";',
        "late.js": f'export const version = "{version}";',
        "models/tiny/model.bin": "x" * 5000,
    }
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    listed = [
        {
            "path": name,
            "bytes": len(text.encode()),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        for name, text in files.items()
    ]
    (folder / "files.json").write_text(json.dumps({"version": version, "files": listed}))


class Server:
    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                super().do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        handler = functools.partial(Handler, directory=str(folder))
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Server]:
    publish(tmp_path, "1")
    server = Server(tmp_path)
    yield server
    server.http.shutdown()
    server.http.server_close()


def open_site(context: Any, site: Server) -> Any:
    page = context.new_page()
    page.goto(site.url)
    page.wait_for_function("document.getElementById('says').textContent !== ''")
    return page


SERVED = "navigator.serviceWorker.controller !== null"


@pytest.mark.slow
def test_it_opens_without_a_network(browser: Any, site: Server) -> None:
    context = browser.new_context()
    page = open_site(context, site)
    page.wait_for_function(SERVED)
    assert page.evaluate("model()") == 5000
    page.wait_for_function("caches.open('glassgpt-site').then((c) => c.keys()).then((k) => k.length === 5)")
    context.set_offline(True)
    site.asked.clear()
    page.reload()
    page.wait_for_function("document.getElementById('says').textContent === '1'")
    assert page.evaluate("later()") == "1"
    assert page.evaluate("model()") == 5000
    assert site.asked == []
    context.close()


@pytest.mark.slow
def test_an_update_never_mixes_two_versions(browser: Any, site: Server, tmp_path: Path) -> None:
    context = browser.new_context()
    page = open_site(context, site)
    page.wait_for_function(SERVED)
    publish(tmp_path, "2")
    # The open tab stays at its version, also for what it loads now, and so does a tab opened beside it.
    assert page.evaluate("later()") == "1"
    second = open_site(context, site)
    assert second.inner_text("#says") == "1"
    second.wait_for_function("registration.waiting !== null")
    assert second.evaluate("later()") == "1"
    second.close()
    # When both are closed, the next one is of the new version, and what is old is gone.
    page.close()
    third = open_site(context, site)
    assert (third.inner_text("#says"), third.evaluate("later()")) == ("2", "2")
    stored = third.evaluate(
        "caches.open('glassgpt-site').then((c) => c.keys()).then((k) => k.map(({ url }) => url))"
    )
    assert [url.rsplit("/", 1)[1] for url in stored if "list-" in url] == ["list-2"]
    context.close()


@pytest.mark.slow
def test_a_site_that_is_being_published_is_not_stored(browser: Any, site: Server, tmp_path: Path) -> None:
    context = browser.new_context()
    page = open_site(context, site)
    page.wait_for_function(SERVED)
    publish(tmp_path, "2")
    (tmp_path / "late.js").write_text('export const version = "3";')  # its list says otherwise
    second = open_site(context, site)
    assert second.inner_text("#says") == "1"
    second.wait_for_function("registration.installing === null")
    assert second.evaluate("registration.waiting === null")
    assert second.evaluate("later()") == "1"
    context.close()
