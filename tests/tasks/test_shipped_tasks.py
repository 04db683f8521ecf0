"""The shipped translator and the shipped adapter: out of the box, offline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import glassgpt as package
from glassgpt.weights.registry import DATA
from tests.cli.conftest import Result

Run = Callable[..., Result]


def need(name: str) -> Path:
    if not (DATA / name / "config.json").is_file():
        pytest.skip(f"{name} is not in this checkout yet (recipes/ makes it)")
    return DATA / name


@pytest.mark.slow
def test_the_translator(glassgpt: Run) -> None:
    folder = need("en-fr")
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 12_000_000
    card = (folder / "MODEL_CARD.md").read_text("utf-8")
    assert "Tatoeba" in card
    assert "CC BY 2.0 FR" in card
    gpt = package.load("en-fr")
    assert gpt.translate("I am a student.", to="fr").startswith("Je suis")
    assert "student" in gpt.translate("Je suis étudiant.", to="en")
    made = glassgpt("translate", "Where is the station?", "--to", "fr")
    assert made.code == 0
    assert made.err == ""
    assert "gare" in made.out.lower() or "station" in made.out.lower()
    beams = glassgpt("translate", "Where is the station?", "--to", "fr", "--beams", "4", "--json")
    assert "?" in json.loads(beams.out)["text"]


@pytest.mark.slow
def test_the_adapter(glassgpt: Run, tmp_path: Path) -> None:
    folder = need("summarize")
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 6_000_000
    assert "CC BY-SA" in (folder / "MODEL_CARD.md").read_text("utf-8")
    text = (
        "Early life.\nShe was born in Lisbon in 1902 and studied mathematics at the university there. "
        "Career.\nFrom 1928 on she taught at a school in Porto, and published four books of poems. "
        "Her second book won a national prize in 1935."
    )
    file = tmp_path / "article.txt"
    file.write_text(text, "utf-8")
    made = glassgpt("summarize", file, "--max-new-tokens", "30", "--json")
    assert made.code == 0
    values = json.loads(made.out)
    assert values["text"].strip()
    assert values["kept_tokens"] == values["source_tokens"]
