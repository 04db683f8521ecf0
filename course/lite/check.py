"""Run every lesson of the course in headless Chromium, in the site that build.py wrote. `make test-lite`.

    python course/lite/check.py build/lite [07 08]

A lesson passes if no cell raises. The requests of each page are watched: all of them go to the site itself.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

PATIENCE = 900  # seconds for one lesson, the kernel's start included

# Runs in the page. The cells that have run have a number; a cell that raised has an output of type error.
STATE = """() => {
  const panel = window.jupyterapp?.shell.currentWidget;
  const cells = panel?.content?.widgets?.filter(cell => cell.model.type === 'code') ?? [];
  const outputs = cells.map(cell => cell.model.outputs.toJSON());
  return {
    cells: cells.length,
    kernel: panel?.context?.sessionContext?.session?.kernel?.status ?? '',
    done: cells.filter(cell => cell.model.executionCount !== null).length,
    printed: outputs.flat().filter(output => output.output_type === 'stream').length,
    drawn: outputs.flat().filter(output => output.data?.['image/svg+xml']).length,
    errors: outputs.flat().filter(output => output.output_type === 'error')
      .map(output => `${output.ename}: ${output.evalue}`),
  };
}"""

# What a reader does: a cell with a right function, which goes into my_gpt2.py in the browser's storage.
KEEP = """async () => {
  const kernel = window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
  const code = `import numpy as np
from glassgpt import course
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
course.keep("softmax", softmax)
assert "def softmax" in open("my_gpt2.py").read()`;
  const future = kernel.requestExecute({ code });
  const reply = await future.done;
  return reply.content.status === 'ok' ? null : `${reply.content.ename}: ${reply.content.evalue}`;
}"""


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path)
    parser.add_argument("lessons", nargs="*", metavar="NN", help="default: all")
    given = parser.parse_args()
    names = sorted(path.name for path in (given.site / "files").glob("*.ipynb"))
    wanted = [name for name in names if not given.lessons or name[:2] in given.lessons]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(given.site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = f"http://127.0.0.1:{server.server_port}"
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    failed = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in wanted:
            started = time.monotonic()
            problem = run_lesson(browser, site, name)
            failed += problem is not None
            print(f"{name}: {problem or 'passed'} ({time.monotonic() - started:.0f} s)", flush=True)
        browser.close()
    server.shutdown()
    print(f"{len(wanted) - failed} of {len(wanted)} lessons pass")
    return int(failed > 0 or not wanted)


def run_lesson(browser: Any, site: str, name: str) -> str | None:
    """What is wrong with it; None if every cell ran."""
    context = browser.new_context()
    page = context.new_page()
    elsewhere: list[str] = []
    context.on(
        "request", lambda request: elsewhere.append(request.url) if foreign(request.url, site) else None
    )
    try:
        page.goto(f"{site}/lab/index.html?path={name}")
        page.wait_for_function(f"() => ({STATE})().cells > 3", timeout=PATIENCE * 1000)
        page.wait_for_function(f"() => ({STATE})().kernel === 'idle'", timeout=PATIENCE * 1000)
        problem = page.evaluate(KEEP) if name.startswith("03") else None
        if problem:
            return f"course.keep: {problem}"
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            page.wait_for_timeout(1000)
            state = page.evaluate(STATE)
            if state["errors"]:
                return "; ".join(state["errors"])[:500]
            if state["done"] == state["cells"]:
                break
        else:
            return f"{state['done']} of {state['cells']} cells after {PATIENCE} seconds"
        if not state["printed"] or not state["drawn"]:
            return f"it shows nothing: {state}"
        return f"it asked other servers: {elsewhere[:3]}" if elsewhere else None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:500]}"
    finally:
        context.close()


def foreign(url: str, site: str) -> bool:
    return url.startswith("http") and not url.startswith(site + "/")


if __name__ == "__main__":
    sys.exit(main())
