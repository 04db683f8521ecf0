"""A sweep, path patching and attribution name exactly the heads of a planted induction circuit."""

from __future__ import annotations

import numpy as np
import pytest

from glassgpt.gpt import GPT
from glassgpt.inspect import Head, NamedArray
from tests.inspect.experiments import planted


@pytest.fixture(scope="module")
def gpt() -> GPT:
    return planted.make()


@pytest.fixture(scope="module")
def texts() -> dict[str, list]:
    clean, corrupted, answers, others = planted.pairs()
    return {"clean": clean, "corrupted": corrupted, "answer": answers, "minus": others}


def named(array: NamedArray, least: float = 0.3, others: float = 0.05) -> set[tuple[int, ...]]:
    """The heads with a share, and none between those and the rest."""
    shares = np.abs(array.values)
    assert not ((shares > others) & (shares < least)).any(), shares
    return {tuple(map(int, index)) for index in np.argwhere(shares >= least)}


def test_the_circuit_completes_the_text(gpt, texts) -> None:
    for ids, answer in zip(texts["clean"], texts["answer"], strict=True):
        assert gpt.trace(ids).p_at(-1).argmax() == answer


def test_a_sweep_of_heads_names_both(gpt, texts) -> None:
    found = gpt.sweep(**texts, patch="head").normalized()
    assert named(found) == {planted.PREVIOUS_TOKEN_HEAD, planted.INDUCTION_HEAD}


@pytest.mark.parametrize(
    ("part", "heads"), [("k", {(1, 2)}), ("pattern", {(1, 2)}), ("q", set()), ("v", {(0, 1)})]
)
def test_a_sweep_of_their_inputs_names_what_differs(gpt, texts, part, heads) -> None:
    assert named(gpt.sweep(**texts, patch=part).normalized()) == heads


def test_path_patching_names_the_sender_and_the_input(gpt, texts) -> None:
    by_part = {
        part: named(gpt.path_patch(**texts, receivers=[Head(1, 2, part)]).normalized())
        for part in ("q", "k", "v")
    }
    assert by_part == {"q": set(), "k": {planted.PREVIOUS_TOKEN_HEAD}, "v": set()}
    assert named(gpt.path_patch(**texts).normalized()) == {planted.INDUCTION_HEAD}  # directly to the logits
    elsewhere = [Head(1, 0), Head(1, 1), Head(1, 3)]
    assert named(gpt.path_patch(**texts, receivers=elsewhere).normalized()) == set()


def test_the_stream_carries_it_from_the_second_token_to_the_last(gpt, texts) -> None:
    one = {name: values[:1] for name, values in texts.items()}
    found = gpt.sweep(**one, patch="resid_post").normalized()
    first = int(np.flatnonzero(np.array(one["clean"][0]) != one["corrupted"][0])[0])
    last = len(one["clean"][0]) - 1
    assert named(found) == {(0, first + 1), (1, last)}


def test_logit_attribution_names_the_induction_head(gpt, texts) -> None:
    heads = gpt.traces(texts["clean"]).attribute_logits(texts["answer"], minus=texts["minus"]).heads.mean()
    assert named(NamedArray(heads.values / heads.values.max(), heads.dims, heads.labels)) == {(1, 2)}
