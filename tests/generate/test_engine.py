"""The engine on a real tiny model: alone and together, joining and leaving, stopping, sliding, cancelling.

Every test runs twice: on numpy, where a step is read at once, and on torch tensors, where it is read one step
late as on a GPU.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.generate import Engine, SamplingParams
from glassgpt.generate.prompt import fit_length
from tests.generate.tiny import EOT, TINY, VOCAB, LetterTokenizer, TinyBackend, finished, run

TOKENIZER = LetterTokenizer()


@pytest.fixture(params=[False, True], ids=["host", "device"])
def device(request):
    return request.param


def engine_of(rows=1, device=False, tokenizer=TOKENIZER, **options):
    return Engine(TinyBackend(rows, device=device, **options), tokenizer)


def alone(prompt, settings, device=False, **options):
    engine = engine_of(1, device, **options)
    engine.add(prompt, settings)
    return finished(run(engine))[1, 0]


def greedy_by_hand(prompt, count, backend=None):
    """Greedy decoding by reading the whole text again for every token, window and all."""
    backend = TinyBackend() if backend is None else backend
    text, window = list(prompt), list(prompt)
    for _ in range(count):
        if len(window) > backend.context:
            window = window[-(backend.context - backend.context // 4) :]
        token = int(np.argmax(backend.logits([window])[0, len(window) - 1]))
        text.append(token)
        window.append(token)
    return text[len(prompt) :]


REQUESTS = [
    ([5, 6, 7], SamplingParams(seed=1, max_new_tokens=12)),
    ([9], SamplingParams(seed=2, max_new_tokens=30, temperature=1.5, top_k=None, ignore_eot=True)),
    ([3] * 20, SamplingParams(temperature=0, max_new_tokens=9, logprobs=None)),
    ([1, 2], SamplingParams(seed=3, max_new_tokens=15, top_p=0.7, repetition_penalty=1.5)),
    ([4, 4, 4], SamplingParams(seed=4, max_new_tokens=1)),
    (
        [8, 3],
        SamplingParams(seed=5, max_new_tokens=25, typical_p=0.6, top_k=None, no_repeat_ngram=2, logprobs=3),
    ),
    ([], SamplingParams(seed=6, max_new_tokens=5, min_p=0.1, temperature=1.3)),
    ([7, 7], SamplingParams(seed=7, max_new_tokens=14, banned_words=["qq", "o"], logit_bias={5: 2.0})),
]


def comparable(generation):
    return dataclasses.replace(generation, seconds=0)


class TestTogether:
    @pytest.mark.parametrize("rows", [1, 3, 8])
    def test_a_text_does_not_depend_on_its_neighbours_or_their_order(self, rows, device):
        expected = [comparable(alone(*request)) for request in REQUESTS]
        for order_seed in range(3):
            order = random.Random(order_seed).sample(range(len(REQUESTS)), len(REQUESTS))
            engine = engine_of(rows, device)
            numbers = {i: engine.add(*REQUESTS[i]) for i in order}
            results = finished(run(engine))
            for i, number in numbers.items():
                got = comparable(results[number, 0])
                if device:  # exp of torch and of numpy differ in the last place
                    assert got.logprobs == pytest.approx(expected[i].logprobs, abs=1e-5)
                    got = dataclasses.replace(got, logprobs=expected[i].logprobs)
                    got = dataclasses.replace(got, alternatives=expected[i].alternatives)
                assert got == expected[i]

    def test_requests_that_join_while_others_run(self, device):
        expected = [alone(*request).tokens for request in REQUESTS]
        engine = engine_of(2, device)
        events, numbers = [], []
        for request in REQUESTS:
            numbers.append(engine.add(*request))
            for _ in range(3):
                events += engine.step()
        results = finished(events + run(engine))
        assert [results[number, 0].tokens for number in numbers] == expected

    def test_greedy_equals_reading_everything_again(self, device):
        settings = SamplingParams(temperature=0, max_new_tokens=20, ignore_eot=True)
        assert alone([5, 6], settings, device).tokens == greedy_by_hand([5, 6], 20)

    def test_each_step_gives_every_running_request_one_token(self):
        engine = engine_of(3)
        for _ in range(3):
            engine.add([5], SamplingParams(seed=1, max_new_tokens=4, ignore_eot=True))
        assert [len([e for e in engine.step() if e.token is not None]) for _ in range(4)] == [3] * 4
        assert engine.backend.decoded == 3
        assert not engine.busy


class TestSamples:
    def test_samples_share_one_reading_of_the_prompt(self, device):
        engine = engine_of(4, device)
        number = engine.add([5, 6, 7], SamplingParams(seed=1, samples=4, max_new_tokens=8, temperature=1.5))
        results = finished(run(engine))
        assert engine.backend.prefilled == 1
        texts = [tuple(results[number, i].tokens) for i in range(4)]
        assert len(set(texts)) > 1
        assert [results[number, i].sample for i in range(4)] == [0, 1, 2, 3]

    @pytest.mark.parametrize("rows", [1, 2, 3])
    def test_more_samples_than_rows_give_the_same_texts(self, rows, device):
        settings = SamplingParams(seed=1, samples=5, max_new_tokens=8, temperature=1.5)
        wide, narrow = engine_of(5, device), engine_of(rows, device)
        for engine in (wide, narrow):
            engine.add([5, 6, 7], settings)
        expected, got = finished(run(wide)), finished(run(narrow))
        assert {key: g.tokens for key, g in got.items()} == {key: g.tokens for key, g in expected.items()}

    def test_a_sample_that_slid_no_longer_lends_its_prompt(self, device):
        settings = SamplingParams(seed=3, samples=6, max_new_tokens=60, temperature=2, logit_bias={EOT: 2.0})
        wide, narrow = engine_of(6, device), engine_of(2, device)
        for engine in (wide, narrow):
            engine.add([5, 6, 7], settings)
        expected, got = finished(run(wide)), finished(run(narrow))
        lengths = [len(expected[1, i].tokens) for i in range(6)]
        assert max(lengths[:2]) > 24 > min(lengths[:2])  # one slides, then another ends and a third comes in
        assert {key: g.tokens for key, g in got.items()} == {key: g.tokens for key, g in expected.items()}

    def test_the_first_sample_is_what_one_sample_would_be(self, device):
        engine = engine_of(3, device)
        engine.add([5, 6], SamplingParams(seed=9, samples=3, temperature=1.5))
        one = alone([5, 6], SamplingParams(seed=9, temperature=1.5), device)
        assert finished(run(engine))[1, 0].tokens == one.tokens

    def test_without_a_seed_one_is_drawn_and_reported(self, device):
        first = alone([5], SamplingParams(max_new_tokens=30, temperature=2, top_k=None), device)
        assert first.seed is not None
        again = alone(
            [5], SamplingParams(max_new_tokens=30, temperature=2, top_k=None, seed=first.seed), device
        )
        assert again.tokens == first.tokens
        seeds = {alone([5], SamplingParams(max_new_tokens=1)).seed for _ in range(4)}
        assert len(seeds) == 4


class TestStopping:
    def test_end_of_text_ends_and_is_left_out(self, device):
        settings = SamplingParams(seed=1, temperature=2, max_new_tokens=50, logit_bias={EOT: 4.0}, logprobs=2)
        free = alone([5], dataclasses.replace(settings, ignore_eot=True), device)
        assert EOT in free.tokens[2:]
        assert EOT not in free.tokens[:2]
        at = free.tokens.index(EOT)
        ended = alone([5], settings, device)
        assert (ended.tokens, ended.finish_reason) == (free.tokens[:at], "stop")
        assert len(ended.logprobs) == len(ended.alternatives) == at
        assert (len(free.tokens), free.finish_reason) == (50, "length")

    def test_stop_tokens(self, device):
        settings = SamplingParams(seed=1, temperature=1.5, max_new_tokens=40)
        free = alone([5], settings, device)
        token = free.tokens[7]
        ended = alone([5], dataclasses.replace(settings, stop_tokens=(token,)), device)
        assert ended.tokens == free.tokens[: free.tokens.index(token)]
        assert ended.finish_reason == "stop"

    def test_stop_strings_over_token_boundaries(self, device):
        settings = SamplingParams(seed=1, temperature=1.5, max_new_tokens=20)
        free = alone([5, 6], settings, device)
        stop = free.text[5:8]
        at = free.text.index(stop)
        ended = alone([5, 6], dataclasses.replace(settings, stop=(stop,)), device)
        assert ended.text == free.text[:at]
        assert ended.finish_reason == "stop"
        assert TOKENIZER.decode(ended.tokens) == ended.text  # these letters are a token each
        assert len(ended.tokens) == len(ended.logprobs)

    def test_no_tokens_at_all(self, device):
        engine = engine_of(1, device)
        engine.add([5], SamplingParams(max_new_tokens=0))
        result = finished(run(engine))[1, 0]
        assert (result.tokens, result.text, result.finish_reason) == ([], "", "length")
        assert engine.backend.prefilled == 0

    def test_streamed_pieces_make_up_the_text(self, device):
        for prompt, settings in REQUESTS:
            engine = engine_of(1, device)
            engine.add(prompt, dataclasses.replace(settings, stop=("zz", "qq")))
            events = run(engine)
            result = finished(events)[1, 0]
            assert "".join(event.text for event in events) == result.text
            assert [e.token for e in events if e.token is not None][: len(result.tokens)] == result.tokens

    def test_text_is_whole_characters(self, device):
        euro = TOKENIZER.encode("€")
        settings = SamplingParams(temperature=0, max_new_tokens=6, ignore_eot=True, no_repeat_ngram=3)
        bias = {token: 200.0 - 50 * i for i, token in enumerate(euro)}
        engine = engine_of(1, device)
        engine.add([5], dataclasses.replace(settings, logit_bias=bias))
        events = run(engine)
        result = finished(events)[1, 0]
        assert result.text == TOKENIZER.decode(result.tokens)


class TestWindow:
    def test_a_long_text_slides_and_says_so_once(self, device):
        settings = SamplingParams(temperature=0, max_new_tokens=60, ignore_eot=True)
        engine = engine_of(1, device)
        engine.add([5, 6], settings)
        events = run(engine)
        result = finished(events)[1, 0]
        # The last slide keeps more than the usual 18, as only two tokens were still to come.
        assert result.tokens[:58] == greedy_by_hand([5, 6], 58)
        assert len(result.notes) == 1
        assert "24" in result.notes[0]
        assert [e.note for e in events if e.note] == result.notes

    def test_exactly_the_context_needs_no_slide(self, device):
        # 24 positions hold 4 + 20 tokens read; the 21st token drawn is never read.
        fits = alone([5, 6, 7, 8], SamplingParams(temperature=0, max_new_tokens=21, ignore_eot=True), device)
        assert fits.notes == []
        slides = alone(
            [5, 6, 7, 8], SamplingParams(temperature=0, max_new_tokens=22, ignore_eot=True), device
        )
        assert len(slides.notes) == 1
        assert slides.tokens[:21] == fits.tokens

    def test_a_prompt_longer_than_the_context_keeps_its_end(self, device):
        rng = random.Random(0)
        prompt = [rng.randrange(1, VOCAB) for _ in range(100)]
        result = alone(prompt, SamplingParams(temperature=0, max_new_tokens=1, ignore_eot=True), device)
        assert result.tokens == greedy_by_hand(prompt[-24:], 1)  # as much as one token leaves room for
        assert "100 tokens" in result.notes[0]
        assert "last 24" in result.notes[0]
        longer = alone(prompt, SamplingParams(temperature=0, max_new_tokens=10, ignore_eot=True), device)
        assert longer.tokens[:7] == greedy_by_hand(prompt[-18:], 7)

    def test_a_context_of_one(self, device):
        config = dataclasses.replace(TINY, n_positions=1)
        settings = SamplingParams(temperature=0, max_new_tokens=5, ignore_eot=True)
        result = alone([5, 6], settings, device, config=config)
        backend, token, expected = TinyBackend(config=config), 6, []
        for _ in range(5):
            token = int(np.argmax(backend.logits([[token]])[0, 0]))
            expected.append(token)
        assert result.tokens == expected

    @pytest.mark.parametrize("context", [1, 2, 3, 5, 8, 1024])
    def test_what_is_kept_always_leaves_room(self, context):
        for length in (1, context - 1, context, context + 1, 5 * context):
            for remaining in (1, 2, context, 3 * context):
                if length < 1:
                    continue
                kept = fit_length(length, remaining, context)
                assert 1 <= kept <= min(length, context)
                assert kept >= min(length, context - context // 4)
                if kept < min(length, context):  # something was given up: only for room that is needed
                    assert kept + remaining - 1 >= context


class TestComingAndGoing:
    def test_cancelling_a_running_request_frees_its_row(self, device):
        engine = engine_of(1, device)
        first = engine.add([5], SamplingParams(seed=1, max_new_tokens=1000, ignore_eot=True))
        second = engine.add([6], SamplingParams(seed=2, max_new_tokens=5, ignore_eot=True))
        for _ in range(4):
            engine.step()
        engine.cancel(first)
        results = finished(run(engine))
        assert results[first, 0].finish_reason == "cancelled"
        assert 2 <= len(results[first, 0].tokens) <= 4
        assert (
            results[second, 0].tokens
            == alone([6], SamplingParams(seed=2, max_new_tokens=5, ignore_eot=True)).tokens
        )
        assert sorted(engine._rows.free) == [0]

    def test_cancelling_a_waiting_or_unknown_request(self, device):
        engine = engine_of(1, device)
        engine.add([5], SamplingParams(seed=1, max_new_tokens=3))
        waiting = engine.add([5], SamplingParams(seed=1, samples=2))
        engine.cancel(waiting)
        engine.cancel(12345)
        results = finished(run(engine))
        assert [results[waiting, i].finish_reason for i in (0, 1)] == ["cancelled"] * 2
        assert results[waiting, 0].tokens == []

    def test_rows_never_leak(self, device):
        rng = random.Random(7)
        engine = engine_of(3, device)
        numbers, events = [], []
        for _ in range(120):
            if rng.random() < 0.3:
                settings = SamplingParams(
                    seed=rng.randrange(100), max_new_tokens=rng.randrange(12), samples=rng.randrange(1, 4)
                )
                prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(40))]
                numbers.append((engine.add(prompt, settings), settings.samples))
            if numbers and rng.random() < 0.1:
                engine.cancel(rng.choice(numbers)[0])
            events += engine.step()
        events += run(engine)
        assert sorted(engine._rows.free) == [0, 1, 2]
        assert not engine._pipeline
        assert sorted(finished(events)) == sorted((n, i) for n, samples in numbers for i in range(samples))
        assert len([e for e in events if e.generation]) == sum(samples for _, samples in numbers)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_an_interruption_leaves_a_working_engine(self, device, error, monkeypatch):
        engine = engine_of(2, device)
        first = engine.add([5], SamplingParams(seed=1, max_new_tokens=50))
        engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(engine.backend, "decode", raises(error))
            with pytest.raises(error):
                engine.step()
        assert finished(engine.step())[first, 0].finish_reason == "cancelled"
        assert not engine.busy
        again = engine.add([5], SamplingParams(seed=1, max_new_tokens=9))
        expected = alone([5], SamplingParams(seed=1, max_new_tokens=9))
        assert finished(run(engine))[again, 0].tokens == expected.tokens
        assert sorted(engine._rows.free) == [0, 1]


def raises(error):
    def function(*_args):
        raise error

    return function


class TestPipeline:
    def test_a_device_is_read_one_step_late(self):
        engine = engine_of(1, device=True)
        engine.add([5], SamplingParams(seed=1, max_new_tokens=6, ignore_eot=True))
        assert engine.step() == []
        assert engine.backend.waits == 0
        assert len(engine.step()) == 1
        assert (engine.backend.decoded, engine.backend.waits) == (1, 1)
        run(engine)
        assert engine.backend.decoded == 5  # the last token is drawn from the fifth; none in vain

    def test_a_stop_costs_one_step_in_vain(self):
        settings = SamplingParams(temperature=0, max_new_tokens=50, ignore_eot=True)
        token = alone([5], settings).tokens[4]
        first = alone([5], settings).tokens.index(token)
        engine = engine_of(1, device=True)
        engine.add([5], dataclasses.replace(settings, stop_tokens=(token,)))
        run(engine)
        assert engine.backend.decoded == first + 1

    def test_settings_that_look_at_the_text_are_read_in_time(self):
        settings = SamplingParams(temperature=0, max_new_tokens=20, no_repeat_ngram=1, ignore_eot=True)
        assert len(set(alone([5], settings, device=True).tokens)) == 20


class TestMistakes:
    def test_ids_outside_the_vocabulary(self):
        for wrong in (VOCAB, -1, 50_256):
            with pytest.raises(SettingError, match=f"{wrong}.*{VOCAB - 1}"):
                engine_of().add([1, wrong])

    def test_an_empty_prompt_starts_from_end_of_text(self, device):
        settings = SamplingParams(temperature=0, max_new_tokens=5)
        assert alone([], settings, device).tokens == alone([EOT], settings, device).tokens

    def test_an_empty_prompt_without_end_of_text(self):
        config = dataclasses.replace(TINY, eos_token_id=None)
        engine = Engine(TinyBackend(config=config), None)
        with pytest.raises(SettingError, match="empty prompt"):
            engine.add([])
        with_bos = dataclasses.replace(config, bos_token_id=3)
        Engine(TinyBackend(config=with_bos), None).add([])

    def test_beams_and_stop_strings_that_cannot_be(self):
        with pytest.raises(SettingError, match="beams"):
            engine_of().add([1], SamplingParams(beams=2))
        with pytest.raises(UserError, match="tokenizer"):
            engine_of(tokenizer=None).add([1], SamplingParams(stop="a"))

    def test_nothing_left_to_draw_ends_that_request_only(self, device):
        engine = engine_of(2, device)
        everything = dict.fromkeys(range(VOCAB), -np.inf)
        bad = engine.add([5], SamplingParams(logit_bias=everything))
        good = engine.add([5], SamplingParams(seed=1, max_new_tokens=5))
        events = run(engine)
        [error] = [event.error for event in events if event.error]
        assert isinstance(error, SettingError)
        assert "logit_bias" in str(error)
        assert finished(events)[bad, 0].finish_reason == "error"
        expected = alone([5], SamplingParams(seed=1, max_new_tokens=5)).tokens
        assert finished(events)[good, 0].tokens == expected

    def test_logits_that_are_not_numbers(self, device):
        engine = engine_of(1, device)
        engine.backend.w["ln_f.weight"][3] = np.nan
        engine.add([5], SamplingParams(seed=1))
        [error] = [event.error for event in run(engine) if event.error]
        assert "not finite" in str(error)

    def test_a_vocabulary_smaller_than_the_settings_ask_for(self, device):
        config = Config(vocab_size=3, n_positions=8, n_embd=4, n_layer=1, n_head=1)
        result = alone(
            [1],
            SamplingParams(seed=1, top_k=40, logprobs=10, max_new_tokens=3),
            device,
            config=config,
            tokenizer=None,
        )
        assert [len(row) for row in result.alternatives] == [3, 3, 3]


@pytest.mark.parametrize("tokenizer", [None, LetterTokenizer()])
def test_each_of_several_ends_of_text_ends_it(tokenizer):
    settings = SamplingParams(temperature=0, max_new_tokens=6)
    free = alone([3, 4], settings, tokenizer=tokenizer).tokens
    for token in dict.fromkeys(free):
        config = dataclasses.replace(TINY, also_eos=(token, 5_000))
        found = alone([3, 4], settings, tokenizer=tokenizer, config=config)
        assert (found.tokens, found.finish_reason) == (free[: free.index(token)], "stop")
