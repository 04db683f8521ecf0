"""What is promised of the models in the package."""

from __future__ import annotations

import gzip
import json

import pytest

from glassgpt.weights import load_checkpoint, load_tokenizer
from glassgpt.weights.registry import DATA, shipped_names
from tests.test_recipe import RECIPE


@pytest.mark.parametrize(("name", "most"), [("default", 50_000_000), ("tiny", 4_000_000)])
def test_size_card_and_figures(name: str, most: int) -> None:
    folder = DATA / name
    assert sum(file.stat().st_size for file in folder.iterdir()) <= most
    checkpoint = load_checkpoint(name)
    assert (checkpoint.format, checkpoint.config.n_positions) == ("packed", 1024)
    card = (folder / "MODEL_CARD.md").read_text("utf-8")
    assert card.startswith(f"# {name}\n")
    assert f"{checkpoint.config.n_parameters:,} parameters" in card
    assert card.count("\nseed ") == 10
    for left in ("{", "FILL IN"):
        assert left not in card.split("## Ten samples")[0]
    results = json.loads((RECIPE / f"{name}.results.json").read_text("utf-8"))
    assert results["int8"]["perplexity_cost_percent"] <= 0.5
    log = RECIPE / f"{name}.log.jsonl"
    assert log.stat().st_size < 1_000_000


def test_they_have_one_vocabulary_and_say_whose_texts_they_learned() -> None:
    assert {"default", "tiny"} <= set(shipped_names())
    assert load_tokenizer("default").hash == load_tokenizer("tiny").hash
    assert load_tokenizer("default").vocab_size == 16_384
    listed = gzip.decompress((DATA / "default" / "ATTRIBUTION.txt.gz").read_bytes()).decode()
    assert "Wikipedia contributors" in listed
    assert listed.count("\n") > 15_000
