"""What we write, opened by transformers' usual classes, with the same texts, logits and labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed: make test-doors installs it")

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

import glassgpt
from glassgpt.weights import convert
from tests.conftest import SHIPPED
from tests.tasks.conftest import classifier  # noqa: F401  (a fixture)

TEXT = "The old house stood at the end of the lane"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("hf") / "model"
    convert(SHIPPED, target, dtype="float32")
    return target


def test_the_causal_model_and_its_pipeline(folder: Path) -> None:
    gpt = glassgpt.load(folder, backend="torch", device="cpu")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    assert ids == gpt.encode(TEXT)
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits.numpy()
    assert np.abs(theirs - gpt.logits([ids])).max() < 1e-3
    write = pipeline("text-generation", str(folder), device="cpu")
    (text,) = write(TEXT, max_new_tokens=8, do_sample=False, return_full_text=False)
    assert text["generated_text"] == gpt.generate(TEXT, max_new_tokens=8, temperature=0).text


def test_the_classifier(classifier: Path) -> None:  # noqa: F811
    gpt = glassgpt.load(classifier)
    ours = gpt.classify("The red cat sleeps.")
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    assert gpt.task is not None
    direction = gpt.task.direction()
    written = f"{direction.start}The red cat sleeps.{direction.separator}"
    ids = tokenizer(written, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        p = model(ids).logits.softmax(-1)[0].tolist()
    theirs = {model.config.id2label[i]: value for i, value in enumerate(p)}
    assert theirs == pytest.approx(dict(ours.probabilities), abs=1e-4)
