"""Guessing ahead changes the speed, never the text."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter

import numpy as np
import pytest

import glassgpt
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.generate import Engine, SamplingParams
from glassgpt.generate.engine import speculation as speculation_module
from glassgpt.generate.engine.speculation import Cost, PromptLookup, Speculator
from tests.conftest import SHIPPED
from tests.generate.tiny import TINY, LetterTokenizer, TinyBackend, finished, run

WIDE = dataclasses.replace(TINY, n_positions=40)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["host", "device"])
def device(request):
    return request.param


@pytest.fixture
def eager(monkeypatch):
    """Guess at every opportunity, whatever it costs."""
    monkeypatch.setattr(speculation_module, "START", 1e9)
    monkeypatch.setattr(speculation_module, "MAX_BALANCE", 1e9)
    monkeypatch.setattr(speculation_module, "NGRAM", 1)


def engine_of(rows=1, device=False, config=WIDE, draft=None):
    return Engine(TinyBackend(rows, config=config, device=device), LetterTokenizer(), draft=draft)


class TestPromptLookup:
    def test_what_followed_the_same_tokens(self):
        lookup = PromptLookup([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
        assert lookup.guess(3, 3) == [4, 5, 6]
        lookup.read([7])
        assert lookup.guess(3, 3) == []
        lookup.read([7, 1, 2, 3])
        assert lookup.guess(2, 3) == [7, 1]  # the latest place
        assert lookup.guess(2, 4) == []

    def test_the_longest_agreement_wins(self):
        assert PromptLookup([8, 1, 2, 3, 5, 9, 1, 2, 3, 6, 8, 1, 2, 3]).guess(1, 3) == [5]

    def test_a_loop_is_continued(self):
        assert PromptLookup([7, 1, 2, 1, 2, 1, 2]).guess(7, 3) == [1, 2, 1, 2, 1, 2, 1]

    @pytest.mark.parametrize("length", [0, 1, 2, 3])
    def test_short_texts(self, length):
        assert PromptLookup([1] * length).guess(4, 3) == []


class TestBalance:
    def test_it_stops_where_guesses_fail_and_loses_little(self):
        speculator, guessed = Speculator(Cost(), []), 0
        for _ in range(1000):
            length = speculator.length(100)
            if length:
                guessed += 1
                speculator.settle(length, 0)
            else:
                speculator.earn()
        loss = guessed * (Cost().base + Cost().each * (Cost().fewest + 1) - 1)
        assert 0 < loss < 0.03 * 1000

    def test_it_goes_further_where_they_succeed(self):
        speculator = Speculator(Cost(), [])
        lengths = []
        for _ in range(6):
            lengths.append(speculator.length(100))
            speculator.settle(lengths[-1], lengths[-1])
        assert lengths == [4, 9, 15, 15, 15, 15]
        speculator.settle(15, 2)
        assert speculator.length(100) == Cost().fewest

    def test_neighbors_and_a_draft_model_make_it_dearer(self):
        speculator = Speculator(Cost(), [])
        assert speculator.length(100)
        assert not speculator.length(100, neighbors=15)
        assert not speculator.length(100, by_model=True) or Cost().draft < 0.2
        assert not speculator.length(Cost().fewest - 1)  # no room


SETTINGS = [
    SamplingParams(temperature=0, max_new_tokens=30, ignore_eot=True, logprobs=2),
    SamplingParams(seed=2, temperature=1.0, top_k=None, max_new_tokens=25, ignore_eot=True, logprobs=None),
    SamplingParams(seed=3, temperature=0.5, max_new_tokens=50, ignore_eot=True),  # slides
    SamplingParams(seed=4, temperature=0.5, max_new_tokens=20, logit_bias={0: 1.0, 5: 2.0}, samples=2),
    SamplingParams(seed=5, temperature=0.4, max_new_tokens=25, stop=("zz", "q"), top_p=0.9),
    SamplingParams(seed=6, temperature=0.5, max_new_tokens=9, repetition_penalty=1.2),
]


def all_texts(engine, speculate):
    for settings in SETTINGS:
        engine.add([5, 6, 7, 5, 6], dataclasses.replace(settings, speculate=speculate))
    return finished(run(engine))


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("lookup", 1),
        ("draft", 3),
        pytest.param("lookup", 3, marks=pytest.mark.slow),
        pytest.param("draft", 1, marks=pytest.mark.slow),
    ],
)
def test_the_same_text_for_the_same_seed(eager, device, rows, kind):
    draft = TinyBackend(config=WIDE, seed=0 if kind == "draft" else 1) if kind == "draft" else None
    engine = engine_of(rows, device, draft=draft)
    guessed = all_texts(engine, kind)
    assert engine.stats.accepted_tokens > 9
    assert engine.stats.drafted_tokens > engine.stats.accepted_tokens
    plain = all_texts(engine_of(rows, device), "off")
    for key, expected in plain.items():
        found = guessed[key]
        assert (found.tokens, found.text, found.finish_reason) == (
            expected.tokens, expected.text, expected.finish_reason,
        )  # fmt: skip
        assert found.notes == expected.notes
        if expected.logprobs is not None:
            assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-6)
    assert sorted(engine._rows.free) == list(range(rows))


@pytest.mark.slow
def test_a_draft_model_that_is_another_one(eager):
    engine = engine_of(2, draft=TinyBackend(config=WIDE, seed=9))
    guessed = all_texts(engine, "draft")
    plain = all_texts(engine_of(2), "off")
    assert {k: g.tokens for k, g in guessed.items()} == {k: g.tokens for k, g in plain.items()}
    assert engine.stats.drafted_tokens > engine.stats.accepted_tokens


def test_guesses_are_fewer_steps():
    """A text that repeats itself takes a fraction of the decoding steps, by default."""
    settings = SamplingParams(temperature=0, max_new_tokens=35, ignore_eot=True)
    plain, guessing = engine_of(), engine_of()
    plain.add([5, 6], dataclasses.replace(settings, speculate="off"))
    guessing.add([5, 6], settings)
    assert finished(run(plain))[1, 0].tokens == finished(run(guessing))[1, 0].tokens
    steps = guessing.backend.decoded + guessing.backend.prefilled
    assert steps < 0.6 * plain.backend.decoded


def test_on_by_default_only_for_one_sequence_on_a_cpu():
    for rows, device, expected in ((1, False, True), (1, True, False), (2, False, False)):
        engine = engine_of(rows, device)
        engine.add([5, 6] * 8, SamplingParams(temperature=0, max_new_tokens=20, ignore_eot=True))
        run(engine)
        assert (engine.stats.drafted_tokens > 0) == expected


@pytest.mark.slow
def test_the_distribution(eager, monkeypatch):
    """2,000 texts of three tokens, two of them guessed: chi-square against the exact probabilities."""
    backend, prompt, count = TinyBackend(8, config=WIDE, sharpness=1.5), [5, 6, 7], 2000

    def probabilities(text):
        logits = backend.logits([text])[0, -1].astype(np.float64)
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    backend.verify_cost = (1.0, 0.0, 1, 2)
    likely = int(probabilities(prompt).argmax())
    monkeypatch.setattr(PromptLookup, "guess", lambda self, length, match: [likely] * length)
    engine = Engine(backend, LetterTokenizer())
    settings = SamplingParams(
        seed=11, temperature=1.0, top_k=None, max_new_tokens=3, samples=count, ignore_eot=True,
        logprobs=None, speculate="lookup",
    )  # fmt: skip
    engine.add(prompt, settings)
    texts = Counter(tuple(g.tokens) for g in finished(run(engine)).values())
    stats = engine.stats
    assert 0.02 < stats.accepted_tokens / stats.drafted_tokens < 0.98  # both cases are there
    expected: dict[tuple[int, ...], float] = {(): float(count)}
    for _ in range(3):  # texts of which fewer than five are expected are left to the rest
        expected = {
            (*text, token): share * p
            for text, share in expected.items()
            for token, p in enumerate(probabilities([*prompt, *text]))
            if share * p >= 5
        }
    cells = [(texts[text], share) for text, share in expected.items()]
    seen, shares = (sum(column) for column in zip(*cells, strict=True))
    cells.append((count - seen, count - shares))
    freedom = len(cells) - 1
    assert freedom > 10
    statistic = sum((seen - share) ** 2 / share for seen, share in cells)
    # Wilson and Hilferty's normal approximation, 4 standard deviations: one in 30,000 by chance.
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 4 * math.sqrt(2 / (9 * freedom))) ** 3


class TestMistakes:
    def test_no_draft_model(self):
        with pytest.raises(SettingError, match="draft model"):
            engine_of().add([1], SamplingParams(speculate="draft"))

    def test_unknown(self):
        with pytest.raises(SettingError, match="auto, lookup, draft, off"):
            SamplingParams(speculate="fast")

    def test_another_vocabulary(self):
        other = TinyBackend(config=Config(vocab_size=7, n_positions=8, n_embd=4, n_layer=1, n_head=1))
        with pytest.raises(SettingError, match="vocabulary of 7"):
            engine_of(draft=other)


def test_a_loaded_draft_model():
    plain = glassgpt.load(SHIPPED, device="cpu")
    drafted = glassgpt.load(SHIPPED, device="cpu", draft=SHIPPED)
    settings = SamplingParams(temperature=0, max_new_tokens=24)
    prompt = "The sea was calm, and the sea was"
    expected = plain.generate(prompt, settings=dataclasses.replace(settings, speculate="off"))
    assert (
        drafted.generate(prompt, settings=dataclasses.replace(settings, speculate="draft")).text
        == expected.text
    )
    assert "".join(drafted.stream(prompt, settings=settings)) == expected.text
    with pytest.raises(SettingError, match="another tokenizer"):
        plain.use_draft(plain.backend, LetterTokenizer())


@pytest.mark.slow
def test_shipped_model_alone_and_in_a_batch():
    gpt = glassgpt.load(SHIPPED, backend="torch", device="cpu")
    rng = random.Random(1)
    words = "the sea and a door of old stone that nobody had seen in many years".split()
    prompts = [" ".join(rng.choices(words, k=30)) for _ in range(8)]
    for settings in (
        SamplingParams(temperature=0, max_new_tokens=60),
        SamplingParams(seed=1, temperature=0.7, max_new_tokens=60),
    ):
        found = {}
        for kind in ("off", "lookup"):
            texts = gpt.generate(prompts, settings=dataclasses.replace(settings, speculate=kind))
            found[kind] = [generation.tokens for generation in texts]
        assert found["off"] == found["lookup"]
