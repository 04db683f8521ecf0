"""`glassgpt site` in a real Chromium, from a plain web server: it works, and asks for nothing elsewhere."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from glassgpt.errors import SettingError, UserError
from glassgpt.explorer.site import write_site
from glassgpt.weights import convert
from tests.conftest import SHIPPED
from tests.explorer.browser import PATIENCE

LARGEST = 600_000  # bytes, gzip'd, without models


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "explorer"
    write_site(folder, [SHIPPED])
    return folder


def compressed(folder: Path) -> int:
    """The size of everything but the models in one archive."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "models" not in path.relative_to(folder).parts:
                archive.add(path, path.relative_to(folder).as_posix())
    return len(gzip.compress(memory.getvalue(), mtime=0))


def test_size_and_two_builds(site: Path, tmp_path: Path) -> None:
    assert compressed(site) < LARGEST
    again = tmp_path / "again"
    report = write_site(again, [SHIPPED])
    names = sorted(path.relative_to(site) for path in site.rglob("*") if path.is_file())
    assert report.files == len(names)
    assert names == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert all((site / name).read_bytes() == (again / name).read_bytes() for name in names)
    other = write_site(again, [SHIPPED], "Another text")
    assert other.version != report.version


def test_the_command(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "glassgpt", "site", "-o"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    refused = subprocess.run(
        [*run, str(tmp_path / "full"), "--model", SHIPPED], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "full exists and is not a site. Choose another folder." in refused.stderr
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    done = subprocess.run([*run, str(tmp_path / "new"), "--model", SHIPPED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "new")
    assert (tmp_path / "new" / "engine" / "glassgpt.wasm").is_file()


def test_what_a_site_cannot_have(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="name every model once"):
        write_site(tmp_path / "a", [SHIPPED, SHIPPED])
    with pytest.raises(UserError, match="nowhere"):
        write_site(tmp_path / "b", ["nowhere/nothing"])
    assert list(tmp_path.iterdir()) == []


def test_in_a_browser_without_any_server(browser: Any, site: Path, tmp_path: Path) -> None:
    """Opens, traces, generates, compares an edit, opens a dropped model, and refuses a damaged one."""
    problems: list[str] = []
    asked: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.set_default_timeout(PATIENCE * 1000)
    with hosted(site) as address:
        page.goto(f"{address}#text=A%20robot%20must%20obey&view=next")
        page.wait_for_function("document.body.dataset.is === 'ready'")
        page.wait_for_selector(".candidate .share:not(:empty)")
        page.get_by_role("button", name="Generate").click()
        page.wait_for_function("document.querySelectorAll('.written span').length >= 20")
        page.wait_for_function("document.body.dataset.is === 'ready'")
        convert(SHIPPED, tmp_path / "own.gguf", "gguf", "q8_0")
        opened = page.evaluate(OPEN, [(tmp_path / "own.gguf").read_bytes().hex(), "own.gguf"])
        assert opened == {"number": 1, "name": "own"}
        refused = page.evaluate(OPEN, ["00" * 40, "bad.gguf"])
        assert refused == "bad.gguf does not begin with 'GGUF': it is another kind of file."
    assert problems == []
    assert {url for url in asked if not url.startswith(address)} == set()
    page.close()


# The entry for dropped files, as the page uses it.
OPEN = """async ([hex, name]) => {
  const { site } = await import(new URL("state/site.js", document.baseURI).href);
  const bytes = Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
  return site.open([new File([bytes], name)]).catch((error) => error.message);
}"""
