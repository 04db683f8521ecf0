"""The facade: what a user of the Python API sees."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest

from glassgpt.errors import SettingError, UserError
from glassgpt.generate import Generation, SamplingParams
from glassgpt.generate.generation import Interrupted
from glassgpt.gpt import GPT, load
from tests.generate.tiny import EOT, TINY, VOCAB, LetterTokenizer, TinyBackend


@pytest.fixture(params=[False, True], ids=["host", "device"])
def gpt(request):
    return GPT(TinyBackend(device=request.param), LetterTokenizer(), name="tiny")


def test_generate_returns_the_continuation(gpt):
    result = gpt.generate("hello", seed=1, max_new_tokens=10)
    assert isinstance(result, Generation)
    assert result.prompt == "hello"
    assert result.prompt_tokens == 5
    assert result.text == gpt.decode(result.tokens) == str(result)
    assert len(result.tokens) == len(result.logprobs) == 10
    assert all(logprob <= 0 for logprob in result.logprobs)
    assert (result.finish_reason, result.seed, result.notes) == ("length", 1, [])
    assert result.tokens_per_s > 0
    assert result.samples == [result]


def test_text_and_ids_are_the_same_prompt(gpt):
    ids = gpt.encode("hello")
    by_text = gpt.generate("hello", seed=1).tokens
    assert gpt.generate(ids, seed=1).tokens == by_text
    assert gpt.generate(np.array(ids), seed=1).tokens == by_text
    assert gpt.generate(np.array(ids), seed=1).prompt == ids


def test_a_batch_gives_a_list_in_order_and_the_same_texts(gpt):
    prompts = ["hello", "a", [5, 6, 7], "", "the quick brown fox jumps over", "b", "c"]
    batch = gpt.generate(prompts, seed=1, max_new_tokens=30, temperature=1.5)
    assert [g.prompt for g in batch] == prompts
    for prompt, generation in zip(prompts, batch, strict=True):
        assert gpt.generate(prompt, seed=1, max_new_tokens=30, temperature=1.5).tokens == generation.tokens
    assert gpt.generate([]) == []


def test_no_prompt_rambles_from_end_of_text(gpt):
    ramble = gpt.generate(seed=4).tokens
    assert ramble == gpt.generate("", seed=4).tokens == gpt.generate([EOT], seed=4).tokens
    assert gpt.generate(seed=4).prompt == ""


def test_samples_and_best_of(gpt):
    both = {"seed": 2, "temperature": 1.5, "max_new_tokens": 8}
    four = gpt.generate("a", samples=4, **both)
    assert four is four.samples[0]
    assert [g.sample for g in four.samples] == [0, 1, 2, 3]
    best = gpt.generate("a", samples=2, best_of=4, **both)
    means = sorted((np.mean(g.logprobs) for g in four.samples), reverse=True)
    assert [g.score for g in best.samples] == pytest.approx(means[:2])
    assert best.score == max(means)


def test_beams(gpt):
    found = gpt.generate("a", beams=3, samples=3, max_new_tokens=6)
    assert len(found.samples) == 3
    assert found.score >= found.samples[1].score >= found.samples[2].score
    stream = gpt.stream("a", max_new_tokens=20, temperature=0)
    pieces = [next(stream)]
    assert gpt.generate("a", beams=1, max_new_tokens=6, ignore_eot=True).tokens  # must not disturb the stream
    assert "".join([*pieces, *stream]) == gpt.generate("a", max_new_tokens=20, temperature=0).text


class TestStream:
    def test_pieces_make_up_the_text(self, gpt):
        full = gpt.generate("hello", seed=3, max_new_tokens=60, temperature=1.2)
        stream = gpt.stream("hello", seed=3, max_new_tokens=60, temperature=1.2)
        assert stream.generation is None
        assert "".join(stream) == full.text
        assert stream.generation.tokens == full.tokens
        assert stream.notes == full.notes != []
        assert next(stream, "end") == "end"

    def test_two_streams_read_by_turns(self, gpt):
        first = gpt.stream("a", seed=1, max_new_tokens=15)
        second = gpt.stream("b", seed=2, max_new_tokens=25)
        pieces = ["", ""]
        for _ in range(30):
            pieces[0] += next(first, "")
            pieces[1] += next(second, "")
        assert pieces[0] == gpt.generate("a", seed=1, max_new_tokens=15).text
        assert pieces[1] == gpt.generate("b", seed=2, max_new_tokens=25).text

    def test_a_call_does_not_wait_for_an_open_stream(self, gpt):
        stream = gpt.stream("a", seed=1, max_new_tokens=100_000, ignore_eot=True)
        first = next(stream)
        assert len(gpt.generate("b", seed=2, max_new_tokens=5).tokens) == 5
        assert [len(g.tokens) for g in gpt.generate(["b", "c"], seed=2, max_new_tokens=5)] == [5, 5]
        pieces = [first, *(next(stream) for _ in range(10))]
        expected = gpt.generate("a", seed=1, max_new_tokens=30, ignore_eot=True).text
        assert expected.startswith("".join(pieces))

    def test_leaving_early_frees_everything(self, gpt):
        forever = {"seed": 1, "max_new_tokens": 10**9, "ignore_eot": True}
        for piece in gpt.stream("a", **forever):
            assert piece
            break
        closed = gpt.stream("a", **forever)
        next(closed)
        closed.close()
        assert list(closed) == []
        gpt.stream("a", **forever)  # never even begun
        assert gpt.generate("a", seed=1, max_new_tokens=5).text
        assert not any(engine.busy for engine in gpt._engines.idle.values())

    def test_memory_is_kept_for_two_sizes_only(self, gpt):
        for count in (1, 3, 17, 2, 1, 9):
            gpt.generate(["a"] * count, seed=1, max_new_tokens=2)
        assert sorted(gpt._engines.idle) == [1, 16]

    def test_ctrl_c_leaves_a_working_model(self, gpt, monkeypatch):
        expected = gpt.generate("a", seed=1, max_new_tokens=8).text
        stream = gpt.stream("a", seed=1, max_new_tokens=50)
        next(stream)
        with monkeypatch.context() as patch:
            patch.setattr(gpt.backend, "decode", interrupt)
            with pytest.raises(KeyboardInterrupt):
                list(stream)
            with pytest.raises(KeyboardInterrupt):
                gpt.generate("a", max_new_tokens=50)
        assert list(stream) == []
        assert gpt.generate("a", seed=1, max_new_tokens=8).text == expected
        assert not any(engine.busy for engine in gpt._engines.idle.values())

    def test_what_cannot_be_streamed(self, gpt):
        for wrong in ({"samples": 2}, {"best_of": 2}, {"beams": 2}):
            with pytest.raises(SettingError, match=next(iter(wrong))):
                gpt.stream("a", **wrong)


def interrupt(*_args):
    raise KeyboardInterrupt


class TestInterrupted:
    def break_after(self, gpt, monkeypatch, steps):
        """Ctrl-C at that step of decoding, whichever backend takes it."""
        calls = itertools.count()
        right = TinyBackend.decode

        def decode(backend, *arguments):
            return interrupt() if next(calls) == steps else right(backend, *arguments)

        monkeypatch.setattr(TinyBackend, "decode", decode)

    def test_what_is_there_of_every_sample(self, gpt, monkeypatch):
        settings = {"samples": 4, "seed": 3, "max_new_tokens": 12}
        full = [gpt.generate(prompt, **settings).samples for prompt in ("ab", "cd")]
        with monkeypatch.context() as patch:
            self.break_after(gpt, patch, 6)
            with pytest.raises(Interrupted) as caught:
                gpt.generate(["ab", "cd"], **settings)
        found = caught.value.generations
        assert [len(generations) for generations in found] == [4, 4]
        for one, all_of_it in zip(itertools.chain(*found), itertools.chain(*full), strict=True):
            assert one.sample == all_of_it.sample
            assert one.prompt == all_of_it.prompt
            if one.finish_reason == "cancelled":
                assert one.tokens == all_of_it.tokens[: len(one.tokens)]
                assert all_of_it.text.startswith(one.text.rstrip("\ufffd"))
            else:
                assert (one.tokens, one.finish_reason) == (all_of_it.tokens, all_of_it.finish_reason)
        assert max(len(one.tokens) for one in found[0]) >= 6
        assert any(one.finish_reason == "cancelled" for one in found[0])
        assert not any(engine.busy for engine in gpt._engines.idle.values())
        assert gpt.generate("ab", **settings).samples[3].tokens == full[0][3].tokens

    def test_the_best_beams_so_far(self, gpt, monkeypatch):
        settings = {"beams": 3, "samples": 3, "max_new_tokens": 12, "ignore_eot": True}
        expected = gpt.generate("ab", **{**settings, "max_new_tokens": 5}).samples
        with monkeypatch.context() as patch:
            self.break_after(gpt, patch, 4)
            with pytest.raises(Interrupted) as caught:
                gpt.generate("ab", **settings)
        (found,) = caught.value.generations
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        assert {one.finish_reason for one in found} == {"cancelled"}

    def test_a_stream_keeps_its_generation(self, gpt, monkeypatch):
        stream = gpt.stream("ab", seed=3, max_new_tokens=12, ignore_eot=True)
        first = next(stream)
        with monkeypatch.context() as patch:
            self.break_after(gpt, patch, 3)
            with pytest.raises(KeyboardInterrupt):
                list(stream)
        assert stream.generation.finish_reason == "cancelled"
        assert stream.generation.text.startswith(first)
        assert len(stream.generation.tokens) >= 3


class TestPaddedVocabulary:
    """Logits beyond the tokenizer's ids, made the likeliest of all."""

    @pytest.fixture(params=[False, True], ids=["host", "device"])
    def padded(self, request):
        backend = PaddedBackend(device=request.param)
        last = backend.logits([[1, 2, 3]])[0, -1]
        assert last.argmax() >= VOCAB, "else there is nothing to test"
        return GPT(backend, LetterTokenizer())

    @pytest.mark.parametrize(
        "settings",
        [
            {"temperature": 0},
            {"seed": 1, "top_k": None},
            {"seed": 1, "top_p": 0.9, "samples": 3},
            {"beams": 4, "logprobs": 5},
            {"seed": 2, "logprobs": VOCAB + 7, "repetition_penalty": 1.3},
        ],
    )
    def test_only_tokens_are_drawn_and_listed(self, padded, settings):
        for found in padded.generate("abc", max_new_tokens=20, ignore_eot=True, **settings).samples:
            assert len(found.tokens) == 20
            assert max(found.tokens) < VOCAB
            assert padded.decode(found.tokens) == found.text
            for listed in found.alternatives or ():
                assert max(token for token, _ in listed) < VOCAB

    def test_next_gives_every_token_and_no_more(self, padded):
        found = padded.next("abc", k=VOCAB + 100)
        assert len(found) == VOCAB
        assert sum(chance for _, chance in found) == pytest.approx(1)

    def test_a_bias_on_no_token_is_a_mistake(self, padded):
        with pytest.raises(SettingError, match=f"ends at {VOCAB - 1}"):
            padded.generate("abc", logit_bias={VOCAB: 1.0})

    def test_without_a_tokenizer_every_id_counts(self):
        found = GPT(PaddedBackend()).generate([1, 2, 3], temperature=0, max_new_tokens=3, ignore_eot=True)
        assert found.tokens[0] >= VOCAB

    def test_a_tokenizer_too_large_for_the_model(self):
        small = TinyBackend(config=dataclasses.replace(TINY, vocab_size=VOCAB - 3))
        with pytest.raises(UserError, match=rf"has {VOCAB} tokens and the model {VOCAB - 3}"):
            GPT(small, LetterTokenizer())

    def test_a_tokenizer_too_small_for_the_model(self):
        """What it lacks would be lost to every text: it is another model's."""
        large = TinyBackend(config=dataclasses.replace(TINY, vocab_size=VOCAB + 128))
        with pytest.raises(
            UserError, match=rf"has {VOCAB} tokens and the model {VOCAB + 128}.*tokenizer\.json"
        ):
            GPT(large, LetterTokenizer())

    @pytest.mark.parametrize(
        ("tokens", "embeddings", "fits"),
        [
            (50257, 50304, True),  # nanoGPT
            (50257, 50400, True),  # GPT-J
            (50295, 51200, True),  # phi, by Megatron
            (50257, 51200, True),
            (65, 128, True),
            (257, 384, True),
            (50258, 50257, True),  # a special token that nobody learned
            (16384, 50257, False),
            (50257, 65536, False),
            (257, 1024, False),
        ],
    )
    def test_padding_is_told_from_another_tokenizer(self, tokens, embeddings, fits):
        class Sized(LetterTokenizer):
            vocab_size = tokens
            text_size = min(tokens, 50257)

        class Weightless(TinyBackend):
            def __init__(self):
                self.config = dataclasses.replace(TINY, vocab_size=embeddings)

        if fits:
            GPT(Weightless(), Sized())
        else:
            with pytest.raises(UserError, match=f"{tokens:,} tokens and the model {embeddings:,}"):
                GPT(Weightless(), Sized())

    def test_an_end_of_text_that_the_model_never_learned_is_not_used(self):
        class Added(LetterTokenizer):
            eot_id = VOCAB
            vocab_size = VOCAB + 1

        assert GPT(TinyBackend(), Added()).generate(max_new_tokens=2, seed=1).prompt_tokens == 1


class PaddedBackend(TinyBackend):
    def __init__(self, rows=1, config=None, seed=0, device=False, sharpness=3.0):
        config = dataclasses.replace(TINY, vocab_size=VOCAB + 7) if config is None else config
        super().__init__(rows, config, seed, device, sharpness)
        self.w["wte.weight"][VOCAB:] *= 4

    def with_rows(self, rows):
        return PaddedBackend(rows, self.config, self.seed, self.device, self.sharpness)

    def logits(self, batch):
        return np.stack([self.extend([0], [ids], logits="all") for ids in batch])


def test_next_gives_probabilities(gpt):
    logits = gpt.logits([gpt.encode("hello")])[0, -1].astype(np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    candidates = gpt.next("hello", k=5)
    best = np.argsort(-probabilities, kind="stable")[:5]
    assert [text for text, _ in candidates] == [gpt.decode([i]) for i in best]
    assert [p for _, p in candidates] == pytest.approx(probabilities[best], rel=1e-5)
    assert sum(p for _, p in gpt.next("hello", k=1000)) == pytest.approx(1, abs=1e-6)
    assert len(gpt.next(k=1000)) == VOCAB
    assert gpt.next("a" * 100, k=1) == gpt.next("a" * 24, k=1)


def test_logits_of_ragged_sequences(gpt):
    batch = gpt.logits([[1, 2, 3], [4]])
    assert batch.shape == (2, 3, VOCAB)
    assert batch.dtype == np.float32
    np.testing.assert_array_equal(batch[1, 0], gpt.logits([[4]])[0, 0])


def test_settings_objects_and_names(gpt):
    settings = SamplingParams(seed=1, max_new_tokens=5)
    assert gpt.generate("a", settings=settings).tokens == gpt.generate("a", seed=1, max_new_tokens=5).tokens
    assert len(gpt.generate("a", settings=settings, max_new_tokens=7).tokens) == 7
    with pytest.raises(SettingError, match="topk"):
        gpt.generate("a", topk=5)
    with pytest.raises(SettingError, match="topk"):
        gpt.generate("a", settings=settings, topk=5)
    with pytest.raises(SettingError, match="temperature"):
        gpt.generate("a", temperature=-1)


def test_mistakes_leave_nothing_behind(gpt):
    for wrong in ([1, VOCAB], ["a", [1, VOCAB]], [1, "a"], [[1.5]], [True]):
        with pytest.raises(SettingError):
            gpt.generate(wrong)
    with pytest.raises(SettingError, match="k is 0"):
        gpt.next("a", k=0)
    for batch in ([], [[]], [[VOCAB]], [[1] * (TINY.n_positions + 1)]):
        with pytest.raises(SettingError):
            gpt.logits(batch)
    everything = dict.fromkeys(range(VOCAB), float("-inf"))
    with pytest.raises(SettingError, match="Ban fewer"):
        gpt.generate(["a", "b", "c"], logit_bias=everything)
    assert not any(engine.busy for engine in gpt._engines.idle.values())
    assert gpt.generate("a", seed=1, max_new_tokens=3).tokens


def test_a_model_without_a_tokenizer_speaks_in_ids():
    gpt = GPT(TinyBackend(), None, name="bare")
    result = gpt.generate([5, 6], seed=1, max_new_tokens=4)
    assert len(result.tokens) == 4
    assert result.text == "".join(f" {token}" for token in result.tokens)
    assert "".join(gpt.stream([5, 6], seed=1, max_new_tokens=4)) == result.text
    for call in (lambda: gpt.generate("a"), lambda: gpt.decode([1])):
        with pytest.raises(UserError, match=r"bare.*tokenizer\.json.*--ids"):
            call()
    assert [text for text, _ in gpt.next([5], k=3)] == [str(token) for token, _ in gpt.next_ids([5], k=3)]


def test_load_names_backends_it_does_not_have():
    with pytest.raises(SettingError, match="'jax'"):
        load("default", backend="jax")


def test_importing_is_light():
    code = (
        "import sys, glassgpt, glassgpt.generate; assert 'torch' not in sys.modules;"
        "glassgpt.GPT, glassgpt.load; assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_it_says_of_itself(gpt):
    assert repr(gpt) == f"GPT('tiny', {TINY.n_parameters:,} parameters)"
    assert gpt.config is gpt.backend.config


class TestWhatIsNoPrompt:
    @pytest.mark.parametrize(
        "prompt",
        [5, b"abc", {"a": 1}, [1.5, 2], [[1, 2], 3.5], [True], (i for i in (1, 2)), [None], [[None]]],
    )
    def test_is_refused_in_one_line(self, prompt: object) -> None:
        gpt = GPT(TinyBackend())
        with pytest.raises(SettingError, match=r"is not a (prompt|token id)\. Give"):
            gpt.generate(prompt, max_new_tokens=1)

    @pytest.mark.parametrize("batch", [[1, 2], "abc", [[1.5]], 7, [b"ab"]])
    def test_nor_are_its_logits(self, batch: object) -> None:
        with pytest.raises(SettingError, match=r"is not a (prompt|token id)"):
            GPT(TinyBackend()).logits(batch)

    def test_arrays_are_lists(self) -> None:
        gpt = GPT(TinyBackend())
        settings = {"max_new_tokens": 3, "temperature": 0, "ignore_eot": True}
        expected = gpt.generate([1, 2], **settings).tokens
        assert gpt.generate(np.array([1, 2]), **settings).tokens == expected
        assert [g.tokens for g in gpt.generate(np.array([[1, 2], [1, 2]]), **settings)] == [expected] * 2
        assert gpt.logits(np.array([[1, 2]])).shape[:2] == (1, 2)
