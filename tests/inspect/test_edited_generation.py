"""Generation under edits: every token has the probabilities that the edited model gives it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassgpt.errors import SettingError, StepIndexError
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateBlock, AblateHead, AblateMLP, AblateNeuron, Edit, Patch, Steer, SteerToken
from glassgpt.inspect.edits.edited_backend import EditedBackend, edited_engines
from glassgpt.inspect.edits.intervene import log_softmax

from .conftest import SMALL, some_ids

PROMPT = some_ids(9, seed=1)
VECTOR = np.linspace(-1, 1, SMALL.n_embd)
EDITS: list[Edit] = [
    AblateHead(1, 2),
    AblateHead(0, 1, positions=(2, -1)),
    AblateNeuron(1, 17),
    AblateMLP(2),
    AblateBlock(0),
    Steer("h.1.resid_post", VECTOR, 2.0),
    Steer("h.0.resid_post", VECTOR, 3.0, positions=(10, 12)),
]


def next_logprobs(gpt: GPT, ids: list[int], edits: Any) -> np.ndarray:
    return log_softmax(gpt.intervene(ids, edits).logits.astype(np.float64))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.describe())
def test_every_token_is_that_of_the_edited_model(gpt: GPT, edit: Edit) -> None:
    """Edits that take nothing from the text: a plain pass over prompt and text, edited, is the reference."""
    text = gpt.generate(PROMPT, edits=edit, temperature=0, max_new_tokens=6, logprobs=0, ignore_eot=True)
    assert text.logprobs is not None
    for i, (token, logprob) in enumerate(zip(text.tokens, text.logprobs, strict=True)):
        ids = PROMPT + text.tokens[:i]
        if isinstance(edit, AblateHead) and edit.positions:
            its: Edit = AblateHead(0, 1, positions=(2, len(PROMPT) - 1))
        elif isinstance(edit, Steer) and edit.positions:
            here = tuple(position for position in edit.positions if position < len(ids))
            its = Steer(edit.step, VECTOR, 3.0, positions=here) if here else Steer(edit.step, 0 * VECTOR)
        else:
            its = edit
        expected = next_logprobs(gpt, ids, its)
        assert token == expected.argmax()
        assert logprob == pytest.approx(expected[token], abs=2e-5)


@pytest.mark.parametrize(
    "edit",
    [AblateHead(1, 2, "mean"), SteerToken(1, 40, 1.5), Patch("h.1.attn.z", some_ids(9, seed=2), 1)],
    ids=lambda edit: edit.describe(),
)
def test_the_first_token_is_that_of_intervene(gpt: GPT, edit: Edit) -> None:
    """What an edit takes from the prompt it takes once; intervene() shows the same prediction."""
    text = gpt.generate(PROMPT, edits=[edit], temperature=0, max_new_tokens=4, logprobs=3, ignore_eot=True)
    assert text.alternatives is not None
    expected = next_logprobs(gpt, PROMPT, edit)
    for token, logprob in text.alternatives[0]:
        assert logprob == pytest.approx(expected[token], abs=2e-5)
    assert not np.isclose(next_logprobs(gpt, PROMPT, ()), expected, atol=1e-3).all()


def test_a_steered_text_keeps_the_size_it_took_from_the_prompt(gpt: GPT) -> None:
    edit = SteerToken(1, 40, 1.5)
    step = gpt.trace(PROMPT)["h.1.resid_post"]
    row = gpt.weights.W_U[:, 40]
    vector = 1.5 * np.linalg.norm(step, axis=-1).mean() * row / np.linalg.norm(row)
    steered = gpt.generate(PROMPT, edits=edit, temperature=0, max_new_tokens=8, ignore_eot=True)
    added = gpt.generate(
        PROMPT, edits=Steer("h.1.resid_post", vector), temperature=0, max_new_tokens=8, ignore_eot=True
    )
    assert steered.tokens == added.tokens


def test_texts_of_a_batch_are_those_alone(gpt: GPT) -> None:
    prompts = [some_ids(size, seed=size) for size in (3, 9, 1, 14)]
    edits = [AblateHead(1, 2), SteerToken(0, 7)]
    settings = SamplingParams(max_new_tokens=5, seed=3, samples=2, logprobs=0, ignore_eot=True)
    for prompt, together in zip(prompts, gpt.generate(prompts, settings=settings, edits=edits), strict=True):
        alone = gpt.generate(prompt, settings=settings, edits=edits)
        assert [each.tokens for each in together.samples] == [each.tokens for each in alone.samples]
        assert [each.logprobs for each in together.samples] == [each.logprobs for each in alone.samples]


def test_a_stream_beams_and_no_edits(gpt: GPT) -> None:
    edit = AblateMLP(1)
    stream = gpt.stream(PROMPT, edits=edit, max_new_tokens=6, seed=1, ignore_eot=True)
    assert len(list(stream)) <= 6
    assert stream.generation is not None
    assert (
        stream.generation.tokens
        == gpt.generate(PROMPT, edits=edit, max_new_tokens=6, seed=1, ignore_eot=True).tokens
    )
    one = gpt.generate(PROMPT, edits=edit, beams=1, max_new_tokens=6, ignore_eot=True)
    greedy = gpt.generate(PROMPT, edits=edit, temperature=0, max_new_tokens=6, ignore_eot=True)
    assert one.tokens == greedy.tokens
    plain = gpt.generate(PROMPT, temperature=0, max_new_tokens=6, ignore_eot=True)
    assert (
        gpt.generate(PROMPT, edits=(), temperature=0, max_new_tokens=6, ignore_eot=True).tokens
        == plain.tokens
    )


def test_rows_have_their_own_edits(gpt: GPT) -> None:
    """As in a server: requests of one service, each with other edits, equal those alone."""
    each: list[list[Edit]] = [[AblateHead(i % 3, i % 4), SteerToken(i % 3, i)] for i in range(12)]
    engines = edited_engines(gpt)
    service = engines.start_service(4, None)
    try:
        engine = service.engine
        numbers = {}
        settings = SamplingParams(max_new_tokens=4, temperature=0, logprobs=0, ignore_eot=True)
        with gpt.lock.hold():
            for edits in each:
                numbers[engine.add(PROMPT, settings, row_setup=edits)] = edits
            finished = {}
            while engine.busy:
                for event in engine.step():
                    if event.generation is not None:
                        finished[event.request] = event.generation
        for number, edits in numbers.items():
            alone = gpt.generate(PROMPT, settings=settings, edits=edits)
            assert finished[number].tokens == alone.tokens
            assert finished[number].logprobs == alone.logprobs
    finally:
        engines.stop_service()


def test_the_window_slides_for_edits_without_positions(gpt: GPT) -> None:
    text = gpt.generate(some_ids(40), edits=AblateMLP(0), max_new_tokens=30, seed=1, ignore_eot=True)
    assert len(text.tokens) == 30
    with pytest.raises(SettingError, match=r"fixed positions.*Generate at most 8"):
        gpt.generate(some_ids(40), edits=AblateMLP(0, positions=(1,)), max_new_tokens=9)


def test_scores_are_those_of_the_edited_model(gpt: GPT) -> None:
    backend = EditedBackend(gpt, [AblateHead(1, 2)])
    ids = some_ids(12)
    np.testing.assert_allclose(
        backend.logits([ids, ids[:5]])[0, -1], gpt.intervene(ids, AblateHead(1, 2)).logits, atol=1e-5
    )
    prompt = gpt.generate(
        ids, edits=AblateHead(1, 2), max_new_tokens=0, prompt_logprobs=0, temperature=0
    ).prompt_logprobs
    assert prompt is not None
    expected = next_logprobs(gpt, ids[:-1], AblateHead(1, 2))[ids[-1]]
    assert prompt[-1] == pytest.approx(expected, abs=2e-5)


def test_what_cannot_be_applied_is_an_error(gpt: GPT) -> None:
    with pytest.raises(StepIndexError, match="layer 9 is out of range"):
        gpt.generate(PROMPT, edits=AblateHead(9, 0))
    with pytest.raises(SettingError, match="is not an edit"):
        gpt.generate(PROMPT, edits="ablate")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="source of the patch has 3"):
        gpt.stream(PROMPT, edits=Patch("h.0.attn.z", [1, 2, 3]), max_new_tokens=4).__next__()
