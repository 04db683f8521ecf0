"""The page in a real Chromium: a server in a thread, one browser, a page that notices what goes wrong."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

# As in a machine without a screen, where tests may be run by root; nothing is looked up outside.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ROOT = Path(__file__).parents[2]
# What is there when the answers of a view have come.
DRAWN = {
    "glass-block": "glass-scores [role=cell]",
    "glass-heads": "glass-heads .thumb[aria-label]",
    "glass-next": ".candidate .share:not(:empty)",
    "glass-tally": ".tally-table tr",
    "glass-compare": ".lens-table tr, .command",
}
PATIENCE = 180  # seconds: a loaded machine is slow, and a page that never gets there still fails


class NoBrowser(Exception):
    """What to install."""


def find_chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise NoBrowser("no Chromium here: apt-get install chromium (the Explorer's page is shown in it)")


@contextmanager
def launched() -> Iterator[Any]:
    """A browser, or a NoBrowser that says what to install."""
    path = find_chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise NoBrowser("no playwright here: pip install playwright (it drives Chromium)") from None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS, timeout=PATIENCE * 1000)
        yield browser
        browser.close()


@contextmanager
def served(app: Any, limits: Any = None) -> Iterator[str]:
    """The app on a free port of 127.0.0.1."""
    import uvicorn

    from glassgpt.cli.listening import listen
    from glassgpt.http.connection_limits import make_uvicorn_config

    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(make_uvicorn_config(app, limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)
    listener.close()


class Visit:
    """A page of its own. There may be no errors, no dialogs and no requests that leave this machine."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 800}, "accept_downloads": True} | options
        self.url = url
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE * 1000)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on(
            "console", lambda said: said.type == "error" and self.wrong.append(f"console: {said.text}")
        )
        self.page.on(
            "dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        self.context.on("request", lambda request: self._watch(request.url))
        self.asked: set[Any] = set()  # requests that are on their way
        self.page.on("request", lambda request: self.asked.add(request))
        self.page.on("requestfinished", lambda request: self.asked.discard(request))
        self.page.on("requestfailed", lambda request: self.asked.discard(request))

    def _watch(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob", "file") and parts.hostname != "127.0.0.1":
            self.wrong.append(f"request to {url}")

    def open(self, text: str | None = None, **state: Any) -> Visit:
        """The page with a state in its address, when it is ready: by default at block 0, head 0."""
        state = {"layer": 0, "head": 0} | state
        parts = ([] if text is None else [f"text={quote(text, safe='')}"]) + [
            f"{name}={quote(str(value), safe='')}" for name, value in state.items()
        ]
        return self.goto(self.url + ("#" + "&".join(parts) if parts else ""))

    def goto(self, address: str) -> Visit:
        self.page.goto("about:blank")
        self.page.goto(address)
        return self.ready()

    def ready(self) -> Visit:
        """Wait until the page has the trace of its text, and has drawn it."""
        self.page.wait_for_selector("#status[data-is=ready]", state="attached")
        # Asked anew each time: the tour may turn to another view meanwhile.
        self.until(
            "(() => { const view = document.querySelector('#sheet > *')?.localName;"
            " const waits = view in given && store.cursor.layer >= 0;"
            " return !waits || document.querySelector(given[view]) !== null; })()",
            DRAWN,
        )
        return self.painted()

    def painted(self) -> Visit:
        """Wait until all that was asked for has come (a view may ask after another has its answer) and is
        drawn."""
        quiet, end = 0, time.monotonic() + PATIENCE
        while quiet < 2:
            assert time.monotonic() < end, f"never answered: {[request.url for request in self.asked]}"
            self.js(
                "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
            )
            quiet = 0 if self.asked else quiet + 1
        return self

    def js(self, expression: str, argument: Any = None, module: str = "state/store.js") -> Any:
        """A value of the page; `store` and `api` are the page's own, and so is the module of that name."""
        self._import("state/store.js", "state/api.js", module)
        return self.page.evaluate(
            "async (given) => { const { 'state/store.js': { store }, 'state/api.js': { api }, "
            f"'{module}': module }} = globalThis.modules; return await ({expression}); }}",
            argument,
        )

    def _import(self, *names: str) -> None:
        """Put modules of the page where `js` finds them. Chromium may collect the promise of an `import()`
        that nobody else waits for; asking again is harmless here, where nothing has been done yet. So no
        test has an `import()` of its own."""
        from playwright.sync_api import Error

        where = "glass" if self.page.url.startswith("file:") else ""
        for attempt in range(5):
            try:
                self.page.evaluate(
                    "async (names) => { const all = (globalThis.modules ??= {});"
                    f" for (const name of names) all[name] ??= await import(`{where}/${{name}}`); }}",
                    names,
                )
                return
            except Error as error:
                if attempt == 4 or "garbage collected" not in str(error):
                    raise

    def until(self, expression: str, argument: Any = None, module: str = "state/store.js") -> Any:
        """The first value that is something. (Playwright's own waiting uses eval, which the page forbids.)"""
        return until(lambda: self.js(expression, argument, module), expression)

    def state(self) -> Any:
        return self.js("store.get()")

    def ids(self) -> list[int]:
        return self.js("store.trace.tokens.map((token) => token.id)")  # type: ignore[no-any-return]

    def press(self, *keys: str) -> Visit:
        for key in keys:
            self.page.keyboard.press(key)
        return self.painted()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()  # type: ignore[no-any-return]

    def close(self) -> None:
        """As often as one likes."""
        self.context.close()
        assert not self.wrong, self.wrong


def until(inspect_page: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while True:
        found = inspect_page()
        if found:
            return found
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)
