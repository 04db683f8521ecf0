"""Beam search against looking at every text there is."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.generate import SamplingParams
from glassgpt.generate.beam import beam_search
from tests.generate.tiny import EOT, TINY, LetterTokenizer, TinyBackend

SMALL = Config(vocab_size=4, n_positions=12, n_embd=8, n_layer=1, n_head=2, eos_token_id=EOT)
STEPS = 4


def every_text(backend, prompt, steps, length_penalty, banned=()):
    """All texts of up to `steps` tokens, ended by end-of-text or by the limit, best first."""
    found = []
    for length in range(1, steps + 1):
        for tokens in itertools.product(range(backend.config.vocab_size), repeat=length):
            ends = tokens[-1] == EOT
            if EOT in tokens[:-1] or (length < steps and not ends) or set(tokens) & set(banned):
                continue
            logits = backend.logits([[*prompt, *tokens]])[0].astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            joint = sum(logprobs[len(prompt) - 1 + i, token] for i, token in enumerate(tokens))
            found.append((joint / length**length_penalty, list(tokens[:-1] if ends else tokens)))
    return sorted(found, key=lambda item: -item[0])


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("samples", [1, 20])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_beam_of_everything_is_exhaustive_search(length_penalty, seed, samples):
    backend = TinyBackend(81, SMALL, seed=seed, sharpness=1.0)
    settings = SamplingParams(beams=81, samples=samples, max_new_tokens=STEPS, length_penalty=length_penalty)
    found = beam_search(backend, [1, 2], settings)
    expected = every_text(backend, [1, 2], STEPS, length_penalty)[:samples]
    # Both sum float32 logits; the normaliser's exp is float32 in one and float64 in the other.
    assert [g.score for g in found] == pytest.approx([score for score, _ in expected], abs=1e-6)
    assert [g.tokens for g in found] == [tokens for _, tokens in expected]


def test_bans_hold():
    backend = TinyBackend(64, SMALL, sharpness=1.0)
    settings = SamplingParams(beams=64, samples=5, max_new_tokens=3, logit_bias={2: -np.inf})
    expected = every_text(backend, [1], 3, 1.0, banned=[2])[:5]
    assert [g.tokens for g in beam_search(backend, [1], settings)] == [tokens for _, tokens in expected]


@pytest.mark.parametrize("device", [False, True])
def test_a_beam_of_one_is_greedy(device):
    settings = SamplingParams(beams=1, max_new_tokens=15, ignore_eot=True)
    [found] = beam_search(TinyBackend(1, device=device), [5, 6], settings)
    backend, text = TinyBackend(), [5, 6]
    for _ in range(15):
        text.append(int(np.argmax(backend.logits([text])[0, -1])))
    assert found.tokens == text[2:]
    assert found.finish_reason == "length"


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("count", [5, 40])
def test_scores_are_joint_probabilities_and_fall(device, count):
    """40 tokens slide the window of 24."""
    settings = SamplingParams(beams=5, samples=5, max_new_tokens=count, ignore_eot=True, logprobs=2)
    found = beam_search(TinyBackend(5, device=device), [5, 6], settings, LetterTokenizer())
    assert len({tuple(g.tokens) for g in found}) == 5
    assert [g.score for g in found] == sorted((g.score for g in found), reverse=True)
    for generation in found:
        assert generation.score == pytest.approx(generation.joint_logprob / count)
        assert generation.text == LetterTokenizer().decode(generation.tokens)
        assert [len(row) for row in generation.alternatives] == [2] * count
        assert len(generation.notes) == (count == 40)
    if count == 5:
        logits = TinyBackend().logits([[5, 6, *found[0].tokens]])[0, 1:-1].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = [logprobs[i, token] for i, token in enumerate(found[0].tokens)]
        assert found[0].logprobs == pytest.approx(chosen, abs=1e-5)


def test_a_wider_beam_finds_nothing_worse():
    scores = []
    for beams in (1, 4, 16):
        settings = SamplingParams(beams=beams, max_new_tokens=6, length_penalty=0.0)
        scores.append(beam_search(TinyBackend(16), [7], settings)[0].score)
    assert scores == sorted(scores)


def test_stop_strings_end_a_hypothesis():
    tokenizer = LetterTokenizer()
    free = beam_search(TinyBackend(4), [5, 6], SamplingParams(beams=4, max_new_tokens=10), tokenizer)[0]
    stop = free.text[3]
    settings = SamplingParams(beams=4, samples=4, max_new_tokens=10, stop=(stop,))
    for generation in beam_search(TinyBackend(4), [5, 6], settings, tokenizer):
        assert stop not in generation.text
        assert generation.finish_reason in ("stop", "length")
        assert tokenizer.decode(generation.tokens) == generation.text
        assert len(generation.logprobs) == len(generation.tokens)


def test_no_repeat_ngram():
    settings = SamplingParams(beams=3, max_new_tokens=12, no_repeat_ngram=1, ignore_eot=True)
    tokens = beam_search(TinyBackend(3), [5], settings)[0].tokens
    assert len(set(tokens)) == 12
    assert 5 not in tokens


def test_no_tokens_at_all():
    [found] = beam_search(TinyBackend(2), [5], SamplingParams(beams=2, max_new_tokens=0))
    assert (found.tokens, found.text) == ([], "")


def test_mistakes():
    with pytest.raises(SettingError, match="beams 3"):
        beam_search(TinyBackend(2), [5], SamplingParams(beams=3))
    with pytest.raises(SettingError, match="width"):
        beam_search(TinyBackend(2), [5], SamplingParams())
    with pytest.raises(UserError, match="tokenizer"):
        beam_search(TinyBackend(2), [5], SamplingParams(beams=2, stop="a"))
    everything = dict.fromkeys(range(TINY.vocab_size), -np.inf)
    with pytest.raises(SettingError, match="Ban fewer"):
        beam_search(TinyBackend(2), [5], SamplingParams(beams=2, logit_bias=everything))
    broken = TinyBackend(2, dataclasses.replace(TINY))
    broken.w["ln_f.weight"][0] = np.nan
    with pytest.raises(UserError, match="finite"):
        beam_search(broken, [5], SamplingParams(beams=2))
