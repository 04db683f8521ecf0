"""An exported task model gives the same outputs in transformers, added tokens and head included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glassgpt
from glassgpt.tasks.generate import make_encoder
from glassgpt.weights import convert

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

TEXTS = ["The red cat sleeps.", "The bear and the dog sleep, too.", "<to-fr> is a token's name."]


@pytest.mark.slow
@pytest.mark.parametrize("through", ["hf", "packed"])
def test_a_translator(translator: Path, tmp_path: Path, through: str) -> None:
    """Also by way of the shipped format, which has the same tokens and task."""
    source = translator
    if through == "packed":
        convert(translator, tmp_path / "packed", "packed")
        source = tmp_path / "packed"
    convert(source, tmp_path / "hf")
    assert (tmp_path / "hf" / "task.toml").read_text() == (translator / "task.toml").read_text()
    gpt = glassgpt.load(tmp_path / "hf", backend="torch", dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert gpt.task is not None
    assert gpt.tokenizer is not None
    added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
    assert {name: added[name] for name in gpt.task.tokens} == {
        name: gpt.encode(name, allow_special=True)[0] for name in gpt.task.tokens
    }
    encoder = make_encoder(gpt, gpt.task, "fr")
    for text in TEXTS[:2]:
        prompt = encoder.prompt(text).ids
        assert tokenizer(text + "<to-fr>")["input_ids"] == prompt
        theirs = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=20, pad_token_id=0
        )[0, len(prompt) :]  # fmt: skip
        ours = gpt.generate(prompt, temperature=0, max_new_tokens=20)
        eot = gpt.tokenizer.eot_id
        assert ours.tokens == [token for token in theirs.tolist() if token != eot]
        beams = model.generate(
            torch.tensor([prompt]), do_sample=False, num_beams=4, max_new_tokens=12, pad_token_id=0,
            early_stopping="never", eos_token_id=eot,
        )[0, len(prompt) :]  # fmt: skip
        found = gpt.generate(prompt, beams=4, max_new_tokens=12)
        assert found.tokens == [token for token in beams.tolist() if token != eot]


@pytest.mark.slow
def test_a_classifier(classifier: Path, tmp_path: Path) -> None:
    convert(classifier, tmp_path / "hf")
    gpt = glassgpt.load(tmp_path / "hf", dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    for text in TEXTS[:2]:
        ids = tokenizer("<|endoftext|>" + text + "<extract>", return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            shares = model(ids).logits[0].softmax(-1).numpy()
        found = gpt.classify(text)
        assert found.label == model.config.id2label[int(shares.argmax())]
        # float32 in another order of sums
        assert np.allclose(list(found.probabilities.values()), shares, atol=1e-5)


def test_a_token_in_a_users_text_is_text(translator: Path) -> None:
    gpt = glassgpt.load(translator)
    assert gpt.task is not None
    ids = make_encoder(gpt, gpt.task, "fr").prompt(TEXTS[2]).ids
    assert ids.count(gpt.encode("<to-fr>", allow_special=True)[0]) == 1


def test_what_a_format_cannot_hold_is_said(classifier: Path, tmp_path: Path) -> None:
    found = convert(classifier, tmp_path / "a.gguf")
    assert any("no place for a classifier's head" in note for note in found.notes)
    assert any("no place for the task" in note for note in found.notes)
    assert not convert(classifier, tmp_path / "packed", "packed").notes
