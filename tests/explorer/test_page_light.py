"""The light install, without torch: every tab and every step of the tour opens without a red word."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.explorer.browser import Visit

pytestmark = pytest.mark.slow

TOUR = Path(__file__).resolve().parents[1] / "tour_without_torch.py"
VIEWS = ("block", "heads", "next", "why", "cache", "tally", "compare", "family")
RED = "[...document.querySelectorAll('.problem, .notice, [role=alert]')].map((e) => e.textContent).join('')"


@pytest.fixture(scope="module")
def light() -> Iterator[str]:
    """The address of an Explorer in a Python without torch, with the shipped models to choose from."""
    command = [sys.executable, "-P", str(TOUR), "--block", "--", "explore", "--model", "tiny"]
    with subprocess.Popen(
        [*command, "--no-browser", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://[\w.:]+/", server.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            server.terminate()


def test_nothing_is_red(visit: Callable[..., Visit], light: str) -> None:
    page = visit(light).open()
    for view in VIEWS:
        page.js("store.set({ view: given })", view)
        page.ready()
        page.until("document.querySelector('.stale') === null")
        assert page.js(RED) == "", view
        if view == "why":  # with a method that works: the shares of attention rollout sum to one
            assert page.texts("glass-why [aria-pressed=true]")[-1] == "attention rollout"
            shares = [float(each.rstrip("%")) / 100 for each in page.texts(".owed button .how")]
            assert sum(shares) == pytest.approx(1, abs=0.005 * len(shares))
            assert "PyTorch" in page.texts("glass-why .says")[0]
            assert "raises" not in page.texts("glass-why .color-keys")[0]
        if view == "compare":  # with a model of the same vocabulary
            names = page.js(
                "[...document.querySelectorAll('glass-compare select')].map((s) => s.selectedOptions[0].text)"
            )
            assert names[0] == "tiny"
            assert names[1] in ("default", "summarize")
            assert page.page.locator("glass-compare figure svg").count() == 1
    for step in range(16):
        page.js("store.set({ tour: given })", step)
        page.ready()
        page.until("document.querySelector('glass-tour .try') !== null")
        page.until("document.querySelector('.stale') === null")
        assert page.js(RED) == "", step
    page.js("store.set({ tour: 13 })")
    page.until("document.querySelector('#tour-title').textContent === 'Why this word?'")
    page.until("document.querySelector('.tour-words').textContent.includes('through attention')")


def test_a_model_that_nothing_fits_is_told_so_kindly(visit: Callable[..., Visit], light: str) -> None:
    page = visit(light).open("Hello", model="en-fr", view="compare")
    page.until("document.querySelector('glass-compare .command') !== null")
    assert page.js(RED) == ""
    assert "no other model here with the vocabulary of en-fr" in page.texts("glass-compare .said")[0]
    # Whoever chooses one that does not fit reads why, above the figures.
    page.page.locator("#compare-b").select_option(label="tiny")
    page.until("document.querySelector('glass-compare .problem').textContent !== ''")
    assert "different vocabularies" in page.texts("glass-compare .problem")[0]
    assert "previous request" not in page.texts("glass-compare .problem")[0]
    page.wrong = [each for each in page.wrong if "status of 422" not in each]
