"""`gpt.to_transformers()`: the same logits and the same token ids in Hugging Face's classes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import glassgpt
from glassgpt.errors import UserError
from glassgpt.gpt import GPT
from tests.inspect.batches.test_traces import in_numpy, of_kind
from tests.inspect.conftest import SMALL, random_model, some_ids

pytest.importorskip("transformers")


def logits_of(model, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": False}, {"activation_function": "relu", "scale_attn_weights": False}],
)
def test_the_logits_are_the_same(changes) -> None:
    gpt = random_model(dataclasses.replace(SMALL, **changes))
    model, tokenizer = gpt.to_transformers()
    assert tokenizer is None
    ids = some_ids(20)
    # Fused attention sums in another order: 2e-6 was measured.
    np.testing.assert_allclose(logits_of(model, ids), gpt.trace(ids).logits, atol=2e-5)
    assert not model.training


def test_the_tokenizer_is_the_same(shipped) -> None:
    model, tokenizer = shipped.to_transformers()
    text = "The old house, at the end of the lane."
    assert tokenizer(text)["input_ids"] == shipped.encode(text)
    np.testing.assert_allclose(
        logits_of(model, shipped.encode(text)), shipped.trace(text).logits, atol=1e-4, rtol=1e-5
    )


def test_the_weights_are_a_copy() -> None:
    gpt = random_model()
    model, _ = gpt.to_transformers()
    before = gpt.trace([1, 2]).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(gpt.trace([1, 2]).logits, before)


def test_an_adapter_is_added() -> None:
    tuned = glassgpt.load("summarize", device="cpu", dtype="float32", backend="torch")
    model, _ = tuned.to_transformers()
    ids = tuned.encode("The old house stood at the end of the lane.")
    np.testing.assert_allclose(logits_of(model, ids), tuned.trace(ids).logits, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: of_kind({"attention": "relative"}), "relative"),
        (lambda: in_numpy(random_model()), "backend='torch'"),
    ],
)
def test_what_has_no_such_model_says_so(make, word) -> None:
    gpt: GPT = make()
    with pytest.raises(UserError) as caught:
        gpt.to_transformers()
    assert word in str(caught.value)
