"""The shipped translator and the shipped adapter: out of the box, offline, and in transformers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import glassgpt as package
from glassgpt.tasks.generate import make_encoder
from glassgpt.weights import convert, load_config
from glassgpt.weights.registry import DATA
from tests.cli.conftest import Result

Run = Callable[..., Result]

TEXT = (
    "Early life.\nShe was born in Lisbon in 1902 and studied mathematics at the university there. "
    "Career.\nFrom 1928 on she taught at a school in Porto, and published four books of poems. "
    "Her second book won a national prize in 1935."
)


def test_size_and_card_of_the_translator() -> None:
    folder = DATA / "en-fr"
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 12_000_000
    card = (folder / "MODEL_CARD.md").read_text("utf-8")
    assert "Tatoeba" in card
    assert "CC BY 2.0 FR" in card
    assert f"{load_config('en-fr').n_parameters:,} parameters" in card
    recipe = Path(__file__).parents[2] / "recipes" / "translation" / "en-fr.card.md"
    assert recipe.read_text("utf-8") == card


@pytest.mark.slow
def test_the_translator(glassgpt: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpt = package.load("en-fr")
    assert gpt.translate("I am a student.", to="fr").startswith("Je suis")
    assert "student" in gpt.translate("Je suis étudiant.", to="en")
    made = glassgpt("translate", "Where is the station?", "--to", "fr")
    assert (made.code, made.out, made.err) == (0, "Où est la gare ?\n", "")
    beams = glassgpt("translate", "Where is the station?", "--to", "fr", "--beams", "4", "--json")
    assert json.loads(beams.out)["text"] == "Où est la gare ?"
    file = tmp_path / "a.jsonl"
    file.write_text('{"en": "Thank you."}\nno JSON\n{"fr": "Il dort.", "to": "en"}\n', "utf-8")
    made = glassgpt("translate", "--file", file, "--to", "fr")
    assert made.code == 0
    first, second, third = made.out.splitlines()
    assert (first, second, "sleep" in third) == ("Merci.", "", True)
    assert "1 of 3 records skipped" in made.err

    class Stdin:
        buffer = io.BytesIO(b"Il pleut.\n\nMerci.\n")

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Stdin())
    first, second, third = glassgpt("translate", "-", "--to", "en").out.splitlines()
    assert ("rain" in first, second, "Thank" in third) == (True, "", True)


@pytest.mark.slow
def test_the_adapter(glassgpt: Run, tmp_path: Path) -> None:
    folder = DATA / "summarize"
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 6_000_000
    card = (folder / "MODEL_CARD.md").read_text("utf-8")
    assert "CC BY-SA" in card
    recipe = Path(__file__).parents[2] / "recipes" / "summarisation" / "summarize.card.md"
    assert recipe.read_text("utf-8") == card
    file = tmp_path / "article.txt"
    file.write_text(TEXT, "utf-8")
    made = glassgpt("summarize", file, "--abstract", "--max-new-tokens", "30", "--json")
    assert made.code == 0
    values = json.loads(made.out)
    assert values["text"].strip()
    assert values["kept_tokens"] == values["source_tokens"]
    file.write_text(TEXT * 20, "utf-8")
    long = glassgpt("summarize", file, "--abstract", "--max-new-tokens", "5")
    assert "tokens; the summary is of the first" in long.err


@pytest.mark.slow
def test_the_translator_in_transformers(tmp_path: Path) -> None:
    """The shipped weights, exported: the same tokens, greedy and with beams, and the added tokens known."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    convert("en-fr", tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    gpt = package.load(tmp_path, backend="torch", dtype="float32")
    assert gpt.task is not None
    assert gpt.tokenizer is not None
    eot = gpt.tokenizer.eot_id
    for to, text in (("fr", "The children are playing in the garden."), ("en", "Où est l'hôpital ?")):
        prompt = make_encoder(gpt, gpt.task, to).prompt(text).ids
        assert tokenizer(f"{text}<to-{to}>")["input_ids"] == prompt
        for beams, settings in ((1, {"temperature": 0.0}), (4, {"beams": 4})):
            theirs = model.generate(
                torch.tensor([prompt]), do_sample=False, num_beams=beams, max_new_tokens=30, pad_token_id=eot,
                **({"early_stopping": "never"} if beams > 1 else {}),
            )[0, len(prompt) :]  # fmt: skip
            ours = gpt.generate(prompt, max_new_tokens=30, **settings)
            assert ours.tokens == [token for token in theirs.tolist() if token != eot]
            assert tokenizer.decode(theirs, skip_special_tokens=True) == ours.text


@pytest.mark.slow
def test_the_adapter_in_transformers(tmp_path: Path) -> None:
    """Exported, the adapter is one model with its base."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    convert("summarize", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    gpt = package.load("summarize", backend="torch", dtype="float32")
    assert gpt.task is not None
    prompt = make_encoder(gpt, gpt.task).prompt(TEXT).ids
    theirs = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20)[0, len(prompt) :]
    assert gpt.generate(prompt, temperature=0.0, max_new_tokens=20).tokens == theirs.tolist()


@pytest.mark.slow
def test_the_zero_shot_classifier(glassgpt: Run) -> None:
    made = glassgpt("classify", "A charming and often affecting journey.", "--labels", "bad,good", "--json")
    assert json.loads(made.out)["label"] == "good"
