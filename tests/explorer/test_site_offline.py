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
from urllib.request import urlopen

import pytest

from glassgpt.explorer.site import write_site
from tests.conftest import SHIPPED
from tests.explorer.test_languages import MESSAGES
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
    second.wait_for_function("globalThis.registration?.waiting")
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
    second.wait_for_function("globalThis.registration?.installing === null")
    assert second.evaluate("registration.waiting === null")
    assert second.evaluate("later()") == "1"
    context.close()


@pytest.fixture(scope="module")
def explorer_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("explorer") / "site"
    write_site(folder, [SHIPPED])
    server = Server(folder)
    yield server, folder
    server.http.shutdown()
    server.http.server_close()


READY = "#status[data-is=ready]"


def wait_until_stored(page: Any, server: Server) -> None:
    """The page, and the model that it opened; not the model's card."""
    page.wait_for_function(SERVED)
    listed = json.loads(urlopen(f"{server.url}files.json").read())["files"]
    needed = sum(not file["path"].endswith((".md", ".gz")) for file in listed) + 1  # and the list
    stored = "caches.open('glassgpt-site').then((c) => c.keys()).then((keys) => keys.length)"
    page.wait_for_function(f"{stored}.then((count) => count >= {needed})")


@pytest.mark.slow
def test_the_explorer_opens_without_a_network(browser: Any, explorer_site: tuple[Server, Path]) -> None:
    """Also a view, the tour and a language that were not opened before."""
    server, _ = explorer_site
    context = browser.new_context()
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(server.url)
    page.wait_for_selector(READY, state="attached")
    wait_until_stored(page, server)
    context.set_offline(True)
    server.asked.clear()
    page.goto("about:blank")
    page.goto(f"{server.url}#lang=ko&view=next")
    page.wait_for_selector(READY, state="attached")
    assert page.inner_text("#tab-next") == MESSAGES["ko"]["view.next"]
    page.click("#tab-family")
    page.get_by_text(MESSAGES["ko"]["family.says"]).wait_for()
    page.get_by_role("button", name=MESSAGES["ko"]["bar.explain"]).click()
    page.wait_for_selector("glass-tour .tour-words svg")
    page.select_option("#language", "zh")
    page.wait_for_function("document.title && document.documentElement.lang === 'zh-Hans'")
    assert server.asked == []
    assert wrong == []
    context.close()


@pytest.mark.slow
def test_a_model_of_ones_own(browser: Any, explorer_site: tuple[Server, Path]) -> None:
    server, folder = explorer_site
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}#lang=en")
    page.wait_for_selector(READY, state="attached")
    wait_until_stored(page, server)
    before = len(server.asked)
    chosen = page.locator("#tools input[type=file]")
    chosen.set_input_files([str(path) for path in (folder / "models" / "tiny").glob("*.*n*")])
    page.get_by_text("It never left this computer.").wait_for()
    page.wait_for_function("document.querySelectorAll('#model option').length === 2")
    page.wait_for_selector(READY, state="attached")
    # What is no model is refused in one line, and the page goes on.
    chosen.set_input_files([{"name": "notes.gguf", "mimeType": "", "buffer": b"no model"}])
    refused = page.locator(".insert-row .problem")
    refused.wait_for()
    assert "\n" not in refused.inner_text()
    page.press("body", "ArrowLeft")
    assert [path for path in server.asked[before:] if path.startswith("/models")] == []
    context.close()
