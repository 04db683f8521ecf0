"""The shipped model of music, if it is there: it is small, composes in a key, and keeps its tempo."""

from __future__ import annotations

from pathlib import Path

import mido
import pytest

import glassgpt
from glassgpt.gpt import GPT
from glassgpt.music.generate import accompany, continue_primer, sample
from glassgpt.music.midi import write_midi
from glassgpt.music.statistics import estimate_key, share_in_key
from glassgpt.tokenizer import EventTokenizer
from glassgpt.weights.registry import DATA, shipped_names

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("music" not in shipped_names(), reason="the model of music is not in this checkout"),
]


@pytest.fixture(scope="module")
def gpt() -> GPT:
    return glassgpt.load("music", device="cpu")


def test_it_is_small_and_accompanies(gpt: GPT) -> None:
    assert sum(file.stat().st_size for file in (DATA / "music").iterdir()) < 12_000_000
    assert isinstance(gpt.tokenizer, EventTokenizer)
    assert gpt.tokenizer.melody


def test_it_composes_in_a_key_and_goes_on_in_it(gpt: GPT, tmp_path: Path) -> None:
    (take,) = sample(gpt, 8, seed=2)
    write_midi(take.performance, tmp_path / "a.mid", take.seconds)
    assert mido.MidiFile(tmp_path / "a.mid").length == pytest.approx(8.0)
    key = estimate_key(take.performance)
    assert share_in_key(take.performance, key) > 0.8
    (longer,) = continue_primer(gpt, take.performance, 4, cut=8, seed=1)
    assert share_in_key(longer.made, key) > 0.7
    (accompanied,) = accompany(gpt, take.performance, seed=1)
    assert share_in_key(accompanied.performance, key) > 0.7
