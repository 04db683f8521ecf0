"""`gpt.explore` and the progress widget in a real JupyterLab in Chromium. `make test-doors` installs it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupyterlab", reason="jupyterlab is not installed: make test-doors installs it")
pytest.importorskip("playwright")

from playwright.sync_api import sync_playwright

from tests.conftest import SHIPPED

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 180_000  # milliseconds, for what should take a few seconds
CELLS = [
    "import glassgpt, time\nfrom glassgpt.progress import notebook_progress\n"
    f"gpt = glassgpt.load('{SHIPPED}')\n"
    "gpt.explore('The old house stood')",
    "with notebook_progress('counting', 4) as advance:\n"
    "    for _ in range(4):\n        advance(1)\n        time.sleep(1)\nprint('counted')",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    cells = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "source": text,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for i, text in enumerate(CELLS)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "book.ipynb").write_text(json.dumps(book))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--ip=127.0.0.1",
        "--allow-root", "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True",
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(PATIENCE // 100):
        try:
            urllib.request.urlopen(f"{url}/api", timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    yield url
    process.terminate()
    process.wait()


def test_the_explorer_and_a_progress_bar_in_cells(lab: str) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page: Any = browser.new_page(viewport={"width": 1400, "height": 1200})
        page.goto(f"{lab}/lab/tree/book.ipynb", timeout=PATIENCE)
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=PATIENCE)
        ready = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
        page.wait_for_selector(f"{ready}, .jp-Dialog", timeout=PATIENCE)  # it may ask which kernel
        if page.locator(".jp-Dialog").count():
            page.click(".jp-Dialog button.jp-mod-accept")
            page.wait_for_selector(ready, timeout=PATIENCE)
        page.click(".jp-CodeCell >> nth=0 >> .cm-content")
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector("iframe[title='GlassGPT Explorer']", timeout=PATIENCE)
        frame = page.frame_locator("iframe[title='GlassGPT Explorer']")
        frame.get_by_text("house", exact=False).first.wait_for(timeout=PATIENCE)
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector(".widget-hprogress, .widget-hbox", timeout=PATIENCE)
        page.get_by_text("counted", exact=True).wait_for(timeout=PATIENCE)
        assert page.locator(".widget-hprogress").count() == 0  # it is gone
        if os.environ.get("SHOTS"):
            page.screenshot(path=os.environ["SHOTS"])
        browser.close()
