"""Prompts read in chunks between steps, and beginnings that rows share: faster, and never another text."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import glassgpt
from glassgpt.backends.native.backend import is_available
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.generate import Engine, SamplingParams
from glassgpt.generate.engine.prefix_cache import PrefixCache
from glassgpt.model import GPT2
from tests.conftest import SHIPPED
from tests.generate.tiny import VOCAB, LetterTokenizer, TinyBackend, finished, run

CHUNK = 4


@pytest.fixture(params=[False, True], ids=["host", "device"])
def device(request):
    return request.param


def engine_of(rows, device=False, **options):
    backend = TinyBackend(rows, device=device)
    backend.prefill_chunk = CHUNK
    return Engine(backend, LetterTokenizer(), **options)


def texts_of(engine, prompts, settings):
    numbers = [engine.add(prompt, settings) for prompt in prompts]
    results = finished(run(engine))
    return [results[number, 0] for number in numbers]


class TestRows:
    def test_the_longest_beginning_in_whole_chunks(self):
        cache = PrefixCache(4, CHUNK)
        cache.keep(1, [1, 2, 3, 4, 5, 6, 7, 8, 9])
        cache.keep(2, [1, 2, 3, 4, 9, 9, 9, 9])
        assert cache.find([1, 2, 3, 4, 5, 6, 7, 8, 1]) == (1, 8)
        assert cache.find([1, 2, 3, 4, 9, 9, 9, 8, 8]) in [(1, 4), (2, 4)]
        assert cache.find([1, 2, 3, 9, 5])[1] == 0
        assert cache.find([1, 2, 3, 4, 5, 6, 7, 8])[1] == 4  # the last token is read, for its logits
        assert PrefixCache(4, CHUNK, enabled=False).find([1, 2, 3, 4, 5]) == (-1, 0)

    def test_a_row_is_taken_where_least_is_lost(self):
        cache = PrefixCache(4, 2)
        rows = [cache.take([]) for _ in range(4)]
        assert rows == [0, 1, 2, 3]
        for row, ids in enumerate([[1, 1, 2, 2], [3, 3, 4, 4], [3, 3], [5, 5]]):
            cache.keep(row, ids)
        for row in (3, 0, 1, 2):
            cache.release(row)
        assert cache.take([1, 1, 2, 2, 9]) == 0  # holds all of that
        assert cache.take([8, 8]) == 2  # row 1 holds it, too
        cache.keep(2, [8, 8])
        assert cache.take([7, 7]) == 1  # used longer ago
        cache.clear()
        assert (cache.free, cache.find([1, 1, 2])[1]) == ({0, 1, 2, 3}, 0)

    def test_low_rows_come_first(self):
        cache = PrefixCache(12, 2)
        rows = [cache.take([]) for _ in range(12)]
        for row in rows:
            cache.keep(row, [row, row])
            cache.release(row)
        assert cache.take([9, 9, 9]) < 4  # copied from row 9: torch on a CPU computes up to the highest row


class TestChunks:
    def test_a_long_prompt_does_not_stall_the_others(self, device):
        engine = engine_of(2, device, step_tokens=CHUNK)
        first = engine.add([5], SamplingParams(seed=1, max_new_tokens=20, ignore_eot=True))
        engine.step()
        second = engine.add([6] * 18, SamplingParams(seed=2, max_new_tokens=5, ignore_eot=True))
        events = [engine.step() for _ in range(12)]
        counts = [[e.request for e in step].count(first) for step in events]
        assert [counts[i] + counts[i + 1] for i in (2, 4, 6)] == [1] * 3  # a chunk and a token in turn
        assert counts[10 + device :] == [1] * (2 - device)
        started = [i for i, step in enumerate(events) if any(e.request == second for e in step)]
        assert started[0] == 9 + device  # 18 tokens are five chunks; a device is read one step late

    def test_chunks_change_nothing(self, device):
        prompts = [list(range(1, n)) for n in (2, 5, 6, 9, 17, 24, 26)]
        settings = SamplingParams(temperature=0, max_new_tokens=9, ignore_eot=True, logprobs=2)
        alone = []
        for prompt in prompts:  # a cache for one sequence reads its prompt at once
            engine = Engine(TinyBackend(1, device=device), LetterTokenizer())
            alone += texts_of(engine, [prompt], settings)
        for step_tokens in (1, 7, None):
            together = texts_of(engine_of(3, device, step_tokens=step_tokens), prompts, settings)
            assert [g.tokens for g in together] == [g.tokens for g in alone]
            assert [g.notes for g in together] == [g.notes for g in alone]

    def test_cancelled_while_it_is_read(self, device):
        engine = engine_of(2, device, step_tokens=CHUNK)
        first = engine.add([5] * 20, SamplingParams(seed=1, samples=2))
        assert engine.waiting == 2
        assert engine.waiting_tokens == 20
        engine.step()
        assert (engine.running, engine.waiting, engine.busy) == (2, 0, True)
        engine.cancel(first)
        results = finished(run(engine))
        assert [results[first, i].finish_reason for i in (0, 1)] == ["cancelled"] * 2
        assert engine._rows.free == {0, 1}
        again = texts_of(engine, [[5] * 20], SamplingParams(seed=3, max_new_tokens=4))[0]
        fresh = texts_of(engine_of(2, device), [[5] * 20], SamplingParams(seed=3, max_new_tokens=4))[0]
        assert again.tokens == fresh.tokens
        assert again.cached_tokens == CHUNK  # what had been read of it

    def test_a_budget_of_nothing(self):
        with pytest.raises(SettingError, match="step_tokens"):
            engine_of(2, step_tokens=0)


class TestSharedBeginnings:
    def test_a_beginning_is_copied_not_read(self, device):
        engine = engine_of(4, device)
        long = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
        settings = SamplingParams(seed=1, max_new_tokens=5)
        first = texts_of(engine, [long], settings)[0]
        assert (first.cached_tokens, first.prompt_tokens) == (0, 10)
        again, other, none = texts_of(engine, [long, [*long[:7], 1, 2], [1, *long]], settings)
        assert (again.cached_tokens, other.cached_tokens, none.cached_tokens) == (8, 4, 0)
        assert again.tokens == first.tokens
        assert engine.stats.cached_tokens == 12
        assert engine.stats.prompt_tokens == 10 + 10 + 9 + 11
        assert engine.stats.requests == 4

    def test_prompts_that_come_together_share_what_the_first_reads(self, device):
        engine = engine_of(8, device)
        found = texts_of(engine, [[*range(1, 14), i] for i in range(1, 9)], SamplingParams(max_new_tokens=2))
        assert [g.cached_tokens for g in found] == [0] + [12] * 7
        assert engine.backend.prefilled == 3 + 8  # three whole chunks once, and the rest of each

    def test_only_within_one_scope(self, device):
        """Nobody learns from its speed, or from `cached_tokens`, what another has sent."""
        engine = engine_of(rows=2, device=device)
        prompt = list(range(1, 1 + 3 * CHUNK))
        cached = []
        for scope in ("alice", "bob", "alice", "bob", "carol", "carol"):
            number = engine.add(prompt, SamplingParams(max_new_tokens=1), cache_scope=scope)
            cached.append(finished(run(engine))[number, 0].cached_tokens)
        assert [count > 0 for count in cached] == [False, False, True, True, False, True]

    def test_switched_off(self, device):
        engine = engine_of(4, device, prefix_cache=False)
        found = texts_of(engine, [list(range(1, 14))] * 3, SamplingParams(max_new_tokens=2))
        assert [g.cached_tokens for g in found] == [0, 0, 0]

    def test_cleared_with_the_engine(self):
        engine = engine_of(4)
        texts_of(engine, [list(range(1, 14))], SamplingParams(max_new_tokens=2))
        engine.clear()
        assert texts_of(engine, [list(range(1, 14))], SamplingParams(max_new_tokens=2))[0].cached_tokens == 0

    def test_a_row_whose_text_slid_does_not_lend_its_prompt(self, device):
        prompt = list(range(1, 14))
        settings = SamplingParams(seed=1, max_new_tokens=40, ignore_eot=True)
        engine = engine_of(2, device)
        first = texts_of(engine, [prompt], settings)[0]
        assert first.notes
        assert texts_of(engine, [prompt], settings)[0].tokens == first.tokens

    @pytest.mark.slow
    def test_any_order_of_coming_and_going(self, device):
        """Random requests with common beginnings, samples, cancellations: always the text it gets alone."""
        rng = random.Random(3)
        stems = [[rng.randrange(1, VOCAB) for _ in range(16)] for _ in range(3)]
        cases, expected = [], []
        for i in range(60):
            stem = stems[i % 3][: rng.randrange(1, 17)]
            prompt = stem + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(4))]
            settings = SamplingParams(
                seed=i, max_new_tokens=rng.randrange(1, 14), samples=rng.randrange(1, 3)
            )
            cases.append((prompt, settings))
            alone = engine_of(3, device, prefix_cache=False)
            alone.add(prompt, settings)
            expected.append(finished(run(alone)))
        engine, events, numbers = engine_of(3, device, step_tokens=rng.choice([1, 6])), [], []
        for prompt, settings in cases:
            numbers.append(engine.add(prompt, settings))
            if rng.random() < 0.2:
                engine.cancel(engine.add(prompt, settings))
            events += engine.step()
        results = finished(events + run(engine))
        for number, wanted in zip(numbers, expected, strict=True):
            for (_, sample), generation in wanted.items():
                assert results[number, sample].tokens == generation.tokens
        assert engine.stats.cached_tokens > 0
        assert engine._rows.free == {0, 1, 2}


def invariance(backend, prompts, settings):
    """Greedy texts and log-probabilities: alone, in one batch, and with prefix hits."""
    engine = Engine(backend, prefix_cache=False)
    alone = [texts_of(engine, [prompt], settings)[0] for prompt in prompts]
    batch = texts_of(engine, prompts, settings)
    engine = Engine(backend)
    hits = texts_of(engine, prompts, settings)
    assert engine.stats.cached_tokens > engine.stats.prompt_tokens / 2
    for one, two, three in zip(alone, batch, hits, strict=True):
        assert one.tokens == two.tokens == three.tokens
        assert one.logprobs == two.logprobs == three.logprobs  # to the last bit


def prompts_with_stems(count, vocab_size, stem_lengths):
    rng = np.random.default_rng(1)
    stems = [rng.integers(0, vocab_size, n).tolist() for n in stem_lengths]
    return [
        stems[i % len(stems)] + rng.integers(0, vocab_size, int(rng.integers(1, 30))).tolist()
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(3)
    model = GPT2(Config(vocab_size=97, n_positions=256, n_embd=32, n_layer=2, n_head=4)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def test_alone_in_a_batch_and_with_prefix_hits(small):
    prompts = prompts_with_stems(20, 97, (70, 128, 150))
    invariance(TorchBackend(small, rows=8), prompts, SamplingParams(temperature=0, max_new_tokens=6))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_200_prompts_alone_in_a_batch_and_with_prefix_hits(backend):
    if backend == "native" and not is_available():
        pytest.skip("the native engine was not built")
    gpt = glassgpt.load(SHIPPED, dtype="float32", device="cpu", backend=backend)
    prompts = prompts_with_stems(200, 16_000, (64, 100, 128, 200))
    invariance(gpt.backend.with_rows(16), prompts, SamplingParams(temperature=0, max_new_tokens=12))


class TestPromptLogprobs:
    def wanted(self, prompt):
        logits = TinyBackend().logits([prompt])[0].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return [None, *(logprobs[i, token] for i, token in enumerate(prompt[1:]))]

    @pytest.mark.parametrize("length", [1, 2, 4, 5, 13])
    def test_they_are_the_models_own(self, device, length):
        prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1, 2, 3][:length]
        engine = engine_of(2, device)
        found = texts_of(engine, [prompt], SamplingParams(max_new_tokens=0, prompt_logprobs=3))[0]
        assert (found.tokens, found.finish_reason) == ([], "length")
        assert found.prompt_logprobs[0] is None
        assert found.prompt_logprobs[1:] == pytest.approx(self.wanted(prompt)[1:], abs=1e-5)
        assert [None if a is None else len(a) for a in found.prompt_alternatives] == [None] + [3] * (
            length - 1
        )
        for token, logprob, alternatives in zip(
            prompt[1:], found.prompt_logprobs[1:], found.prompt_alternatives[1:], strict=True
        ):
            assert dict(alternatives).get(token, logprob) == logprob  # the very same float

    def test_once_for_a_request_and_before_its_first_token(self, device):
        prompt = list(range(1, 12))
        engine = engine_of(2, device, step_tokens=CHUNK)
        engine.add(prompt, SamplingParams(seed=1, max_new_tokens=3, samples=3, prompt_logprobs=0))
        events = run(engine)
        [place] = [i for i, event in enumerate(events) if event.prompt is not None]
        assert not any(event.token is not None for event in events[:place])
        assert events[place].prompt.logprobs[1:] == pytest.approx(self.wanted(prompt)[1:], abs=1e-5)
        for generation in finished(events).values():
            assert generation.prompt_logprobs == events[place].prompt.logprobs
            assert generation.prompt_alternatives is None
        plain = engine_of(2, device)
        plain.add(prompt, SamplingParams(seed=1, max_new_tokens=3, samples=3))
        texts = finished(run(plain))
        assert {k: g.tokens for k, g in finished(events).items()} == {k: g.tokens for k, g in texts.items()}

    def test_they_are_computed_whatever_the_cache_holds(self):
        engine = engine_of(2)
        prompt = list(range(1, 12))
        texts_of(engine, [prompt], SamplingParams(max_new_tokens=1))
        found = texts_of(engine, [prompt], SamplingParams(max_new_tokens=0, prompt_logprobs=1))[0]
        assert found.cached_tokens == 0
        assert found.prompt_logprobs[1:] == pytest.approx(self.wanted(prompt)[1:], abs=1e-5)

    def test_a_prompt_that_does_not_fit(self):
        prompt = [random.Random(1).randrange(1, VOCAB) for _ in range(30)]
        found = texts_of(engine_of(2), [prompt], SamplingParams(max_new_tokens=0, prompt_logprobs=0))[0]
        assert found.prompt_logprobs[:7] == [None] * 7
        assert found.prompt_logprobs[7:] == pytest.approx(self.wanted(prompt[6:])[1:], abs=1e-5)
        assert "30 tokens" in found.notes[0]

    def test_cancelled_before_they_are_known(self):
        engine = engine_of(2, step_tokens=CHUNK)
        number = engine.add([5] * 20, SamplingParams(prompt_logprobs=0))
        engine.step()
        engine.cancel(number)
        assert finished(run(engine))[number, 0].prompt_logprobs is None


class TestMetrics:
    def test_times_of_a_request(self):
        engine = engine_of(1)
        first = engine.add([5], SamplingParams(seed=1, max_new_tokens=4, ignore_eot=True))
        second = engine.add([6], SamplingParams(seed=1, max_new_tokens=4, ignore_eot=True))
        results = finished(run(engine))
        assert 0 <= results[first, 0].queue_s < results[second, 0].queue_s
        assert results[second, 0].queue_s < results[second, 0].first_token_s
        assert engine.stats.generated_tokens == 8

    def test_no_token_no_time(self):
        engine = engine_of(1)
        engine.add([5], SamplingParams(max_new_tokens=0))
        assert finished(run(engine))[1, 0].first_token_s is None


class TestMinNewTokens:
    def test_stop_tokens_and_strings_wait(self, device):
        settings = SamplingParams(seed=1, temperature=1.5, max_new_tokens=30, ignore_eot=True)
        free = texts_of(engine_of(1, device), [[5, 6]], settings)[0]
        early = free.text[3]
        stopped = SamplingParams(seed=1, temperature=1.5, max_new_tokens=30, ignore_eot=True, stop=(early,))
        assert len(texts_of(engine_of(1, device), [[5, 6]], stopped)[0].tokens) <= 3
        late = SamplingParams(
            seed=1, temperature=1.5, max_new_tokens=30, ignore_eot=True, stop=(early,), min_new_tokens=10
        )
        found = texts_of(engine_of(1, device), [[5, 6]], late)[0]
        assert found.text[:10] == free.text[:10]
        token = free.tokens[3]
        ends = SamplingParams(
            seed=1, temperature=1.5, max_new_tokens=30, ignore_eot=True, stop_tokens=(token,),
            min_new_tokens=10,
        )  # fmt: skip
        found = texts_of(engine_of(1, device), [[5, 6]], ends)[0]
        assert token not in found.tokens
        assert len(found.tokens) >= 10

    def test_more_than_the_most(self):
        with pytest.raises(SettingError, match="min_new_tokens"):
            SamplingParams(min_new_tokens=5, max_new_tokens=4)
