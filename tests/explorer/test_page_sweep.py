"""The sweep of the Heads tab in a real browser: each cell is a patch, and its number is Python's."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from glassgpt.gpt import GPT
from glassgpt.inspect import Patch
from tests.explorer.browser import Visit
from tests.explorer.conftest import TEXT

pytestmark = pytest.mark.slow

Begin = Callable[..., Visit]
SECOND = "The dog ran to the"


def test_cells_are_patches(visit: Begin, gpt: GPT) -> None:
    page = visit().open(view="heads", second=SECOND)
    page.until("store.secondTrace !== null")
    clean, other = gpt.trace(TEXT), gpt.trace(SECOND)
    columns = min(len(clean), len(other))
    layers = gpt.config.n_layer
    page.page.get_by_role("button", name="Sweep", exact=True).click()
    cells = page.page.locator(".sweep .cell")
    page.until("document.querySelectorAll('.sweep .cell').length === given", layers * columns)
    target = int(other.logits_at(-1).argmax())
    before = gpt.intervene(clean, []).p_before[target]
    says = [cells.nth(i).get_attribute("aria-label") for i in range(layers * columns)]
    for row, column in ((0, 0), (0, columns - 1), (2, 1), (layers - 1, columns - 1)):
        layer = layers - 1 - row
        patch = Patch(f"h.{layer}.resid_post", other, positions=(column,))
        after = gpt.intervene(clean, patch).p[target]
        label = says[row * columns + column]
        assert label is not None
        shown = [shares(text) for text in re.findall(r"([<>]?[\d.]+)%", label)]
        assert shown == pytest.approx([before, after], rel=0.06, abs=6e-4)
    last = cells.nth(columns - 1)
    last.click()  # the patch is an edit now
    edits = page.state()["edits"]
    assert edits == [
        {
            "kind": "patch",
            "step": f"h.{layers - 1}.resid_post",
            "source": "second",
            "positions": [columns - 1],
        }
    ]
    page.until("store.intervention !== null")
    expected = gpt.intervene(clean, Patch(f"h.{layers - 1}.resid_post", other, positions=(columns - 1,)))
    assert page.js("store.intervention.kl") == pytest.approx(expected.kl, rel=1e-3)
    assert np.isfinite(expected.kl)


def shares(text: str) -> float:
    """1.5 is 0.015; of "<0.1" half of it."""
    return 0.0005 if text.startswith("<") else float(text.strip(">")) / 100
