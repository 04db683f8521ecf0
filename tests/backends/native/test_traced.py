"""Traces by the compiled engine: the steps of the numpy model, one by one, also where edits change them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import glassgpt
from glassgpt.backends.native import is_available
from glassgpt.backends.native.traced import STEPS, EngineGPT2
from glassgpt.gpt import GPT
from glassgpt.gpt import gpt as gpt_module
from glassgpt.inspect import AblateHead, Patch, SteerToken
from glassgpt.inspect.taps import BLOCK_STEPS, list_steps
from tests.conftest import SHIPPED

pytestmark = pytest.mark.skipif(not is_available(), reason="the native engine was not built")

TEXT = "A robot must obey the orders given it"
CLOSE = 1e-5  # of the largest number of a step; float32 has 6e-8, and sums of a thousand products


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[GPT, GPT]]:
    """The model as it is opened without torch, and in plain numpy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt_module, "is_torch_installed", lambda: False)
        native = glassgpt.load(SHIPPED, device="cpu", backend="native")
        assert isinstance(native.model, EngineGPT2)
        yield native, glassgpt.load(SHIPPED, device="cpu", backend="numpy")


def assert_close(found: np.ndarray, wanted: np.ndarray, name: str) -> None:
    hidden = np.isneginf(wanted)
    assert (np.isneginf(found) == hidden).all(), name
    one, other = (np.where(hidden, 0, x) for x in (found, wanted))
    assert np.abs(one - other).max() <= CLOSE * max(1e-3, np.abs(other).max()), name


def test_the_steps_have_the_names_of_the_taps() -> None:
    assert list(STEPS) == list(BLOCK_STEPS)


@pytest.mark.parametrize("text", [TEXT, "A", "one two " * 150])
def test_every_step(pair: tuple[GPT, GPT], text: str) -> None:
    found, wanted = (gpt.trace(text) for gpt in pair)
    for name in list_steps(pair[0].config):
        assert_close(found[name], wanted[name], name)


def test_appended_tokens(pair: tuple[GPT, GPT]) -> None:
    found, wanted = (gpt.trace(TEXT).append(260).append(11) for gpt in pair)
    for name in ("h.4.resid_post", "h.2.attn.weights", "logits"):
        assert_close(found[name], wanted[name], name)


@pytest.mark.parametrize(
    "edit",
    [
        AblateHead(2, 1),
        AblateHead(3, 0, "mean", (2, 4)),
        SteerToken(1, " sea", 2.0),
        Patch("h.1.attn.weights", "A robot could help the people around it"),
        Patch("h.2.attn.masked", "A robot could help the people around it", head=1),
    ],
    ids=lambda edit: edit.describe(),
)
def test_edits(pair: tuple[GPT, GPT], edit: object) -> None:
    found, wanted = (gpt.intervene(TEXT, [edit]) for gpt in pair)
    assert_close(found.logits, wanted.logits, "logits")
    assert np.abs(found.logits - found.logits_before).max() > 1e-3


def test_a_mistake_in_a_tap_is_raised(pair: tuple[GPT, GPT]) -> None:
    def tap(name: str, x: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError, match="ln_1"):
        pair[0].model.block(0, np.zeros((1, 3, 128), np.float32), tap=tap)  # type: ignore[arg-type]
