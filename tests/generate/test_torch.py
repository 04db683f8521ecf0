"""The engine over the real torch model, held against Hugging Face's `generate` on the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.generate import Engine, SamplingParams
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from tests.generate.tiny import finished, run

CONFIG = Config(vocab_size=97, n_positions=256, n_embd=32, n_layer=2, n_head=4)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    model = GPT2(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from the flat start, so that greedy texts do not loop
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


@pytest.fixture(scope="module")
def reference(model):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG.to_dict())).eval()
    state = {f"transformer.{name}": value for name, value in model.state_dict().items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    theirs.tie_weights()
    return theirs


def hugging_face(reference, prompt, count, **options):
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, pad_token_id=0, **options
        )
    return out[:, len(prompt) :].tolist()


def test_greedy_equals_transformers_for_200_tokens(model, reference):
    gpt = GPT(TorchBackend(model))
    for prompt in ([1, 2, 3], [50], list(range(40))):
        ours = gpt.generate(prompt, temperature=0, max_new_tokens=200).tokens
        assert ours == hugging_face(reference, prompt, 200, do_sample=False)[0]
        assert len(set(ours)) > 10


@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_beams_equal_transformers(model, reference, penalty):
    gpt = GPT(TorchBackend(model))
    found = gpt.generate([1, 2, 3], beams=4, samples=4, max_new_tokens=20, length_penalty=penalty)
    theirs = hugging_face(
        reference, [1, 2, 3], 20, num_beams=4, num_return_sequences=4, do_sample=False, length_penalty=penalty
    )
    assert [g.tokens for g in found.samples] == theirs


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
        ({"no_repeat_ngram": 2}, {"no_repeat_ngram_size": 2}),
    ],
)
def test_penalties_equal_transformers(model, reference, ours, theirs):
    tokens = GPT(TorchBackend(model)).generate([1, 2, 3], temperature=0, max_new_tokens=60, **ours).tokens
    assert tokens == hugging_face(reference, [1, 2, 3], 60, do_sample=False, **theirs)[0]


def test_unequal_prompts_together_give_what_they_give_alone(model):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 97, n).tolist() for n in (1, 3, 17, 120, 256, 300)]
    settings = [
        SamplingParams(
            seed=i, max_new_tokens=12 + i, temperature=0 if i % 3 == 0 else 1.0, top_k=None if i % 2 else 20
        )
        for i in range(len(prompts))
    ]
    alone = []
    for prompt, setting in zip(prompts, settings, strict=True):
        engine = Engine(TorchBackend(model, rows=4))
        engine.add(prompt, setting)
        alone.append(finished(run(engine))[1, 0])
    engine = Engine(TorchBackend(model, rows=4))
    for prompt, setting in zip(prompts, settings, strict=True):
        engine.add(prompt, setting)
    together = finished(run(engine))
    for i, expected in enumerate(alone):
        assert together[i + 1, 0].tokens == expected.tokens
        # Prompts are read alone and rows from four on multiply the same way: bit for bit, see TorchBackend.
        assert together[i + 1, 0].logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_samples_from_a_copied_prompt(model):
    gpt = GPT(TorchBackend(model))
    many = gpt.generate([1, 2, 3], seed=5, samples=6, temperature=1.0, max_new_tokens=20)
    assert (
        many.samples[0].tokens == gpt.generate([1, 2, 3], seed=5, temperature=1.0, max_new_tokens=20).tokens
    )
    assert len({tuple(g.tokens) for g in many.samples}) == 6


def test_past_the_last_position(model):
    result = GPT(TorchBackend(model)).generate([1, 2, 3], seed=1, max_new_tokens=400, ignore_eot=True)
    assert len(result.tokens) == 400
    assert "256" in result.notes[0]
