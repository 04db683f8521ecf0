"""What a site shows besides the page: how far a model has come, the question before a large one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.explorer.browser import Visit
from tests.explorer.conftest import TEXT
from tests.explorer.test_languages import MESSAGES

Begin = Callable[..., Visit]
MODELS = [{"name": "default", "bytes": 47_000_000}, {"name": "tiny", "bytes": 1_300_000}]
LOADING = "shell/loading.js"


def say(page: Visit, **detail: Any) -> str:
    page.js(
        "document.dispatchEvent(new CustomEvent('glass-loading', { detail: given }))",
        {"name": "default", "total": 47_000_000, "loaded": 0} | detail,
    )
    return str(
        page.js(
            "document.querySelector('.loading').hidden ? '' : document.querySelector('.loading').innerText"
        )
    )


@pytest.mark.slow
def test_loading_shows_bytes_and_the_time_left(visit: Begin) -> None:
    page = visit().open(TEXT, view="next")
    page.js("module.showLoading(document.body, () => true)", module=LOADING)
    assert say(page, phase="download").startswith("Downloading default: 0.0 of 47 MB")
    # 23.5 MB in 10 seconds leave 10 more.
    page.js("globalThis.performance.now = ((now) => () => now() + 10000)(performance.now.bind(performance))")
    said = say(page, phase="download", loaded=23_500_000)
    assert "24 of 47 MB, 1" in said
    assert " s left" in said
    assert "press Explain" in said
    assert page.js("document.querySelector('.loading progress').value") == 0.5
    assert say(page, phase="open") == "Opening default…"
    assert (
        say(page, phase="failed", message="It is damaged.") == "default could not be opened. It is damaged."
    )
    assert say(page, phase="ready") == ""


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "asked"), [(2, True), (8, False)])
def test_a_small_device_is_asked(visit: Begin, memory: int, asked: bool) -> None:
    page = visit()
    page.context.add_init_script(
        f"Object.defineProperty(navigator, 'deviceMemory', {{ get: () => {memory} }})"
    )
    page.open(TEXT, view="next")
    ask = "void module.ask(given[0], given).then((yes) => (globalThis.answered = String(yes)))"
    page.js(ask, MODELS, LOADING)
    if asked:
        dialog = page.page.locator("dialog.ask")
        words = dialog.inner_text()
        assert "47 MB" in words
        assert "141 MB" in words
        assert "1.3 MB" in words
        dialog.get_by_role("button", name="Open tiny instead").click()
    page.until("globalThis.answered")
    assert page.js("globalThis.answered") == str(not asked).lower()
    # The small one is never asked about.
    page.js(ask.replace("given[0]", "given[1]").replace("answered", "small"), MODELS, LOADING)
    assert page.until("globalThis.small") == "true"


@pytest.mark.slow
@pytest.mark.parametrize("code", ["en", "ko"])
def test_the_tour_can_be_read_before_the_model_is_there(visit: Begin, url: str, code: str) -> None:
    page = visit()
    held: list[Any] = []
    page.context.route("**/api/v1/trace", lambda route: held.append(route))
    page.page.goto(f"{url}#view=next&tour=6&lang={code}")
    page.until("document.querySelector('glass-tour h2')?.textContent !== ''")
    words = page.page.locator("glass-tour .tour-words")
    words.get_by_text(MESSAGES[code]["tour.early"]).wait_for()
    said = words.inner_text()
    assert MESSAGES[code]["tour.mask.1"] in said
    assert MESSAGES[code]["tour.mask.2"] in said
    page.page.locator("glass-tour").get_by_role("button", name=MESSAGES[code]["tour.back"]).first.click()
    page.until("document.querySelector('glass-tour select').value === '5'")
    assert MESSAGES[code]["tour.numbers.2"] in words.inner_text()
    assert "{" not in words.inner_text()
    held[-1].continue_()
    page.until("document.querySelector('.tour-words svg')")
    assert MESSAGES[code]["tour.early"] not in words.inner_text()
