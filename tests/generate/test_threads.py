"""One model for many threads: each gets what it would get alone, and what they leave is given back."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import glassgpt
from glassgpt.errors import SettingError, UserError
from glassgpt.generate.engine.fair_lock import FairLock
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.service.service import Job
from glassgpt.gpt import GPT
from tests.conftest import SHIPPED
from tests.generate.tiny import VOCAB, LetterTokenizer, TinyBackend

THREADS = 24
FAR_OFF = 600  # seconds: only a deadlock takes so long
FOREVER = {"seed": 1, "max_new_tokens": 10**9, "ignore_eot": True}


@pytest.fixture(params=[False, True], ids=["host", "device"])
def gpt(request):
    return GPT(TinyBackend(device=request.param), LetterTokenizer(), name="tiny")


@pytest.fixture
def switching():
    """Threads that change after nearly every line of Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def calls(gpt):
    """For each thread something else to ask for."""

    def stream(i):
        stream = gpt.stream("ab", seed=i, max_new_tokens=8)
        return "".join(stream), stream.generation.tokens

    def left(i):
        stream = gpt.stream("cd", seed=i, max_new_tokens=8, ignore_eot=True)
        pieces = [next(stream) for _ in range(3)]
        if i % 2:
            stream.close()
        return pieces

    def banned(i):
        with pytest.raises(SettingError, match="Ban fewer"):
            gpt.generate("a", logit_bias=dict.fromkeys(range(VOCAB), float("-inf")))

    kinds = (
        lambda i: gpt.generate("hello", seed=i, max_new_tokens=7).tokens,
        stream,
        lambda i: [g.tokens for g in gpt.generate(["a", "bcd", "e"], seed=i, samples=2, max_new_tokens=5)],
        lambda i: gpt.next("abc"[: 1 + i % 3], k=4),
        left,
        lambda i: [g.tokens for g in gpt.generate("ab", beams=3, samples=3, max_new_tokens=4).samples],
        lambda i: gpt.logits([[1, 2, 3 + i], [4]])[0].tolist(),
        banned,
    )
    return [lambda i=i: kinds[i % len(kinds)](i) for i in range(THREADS)]


def together(calls):
    """All calls at once, each in a thread of its own; what they found, in order."""
    ready = threading.Barrier(len(calls))
    found: dict[int, object] = {}

    def run(i):
        ready.wait(FAR_OFF)
        found[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FAR_OFF)
    return [found.get(i, "never ended, or with an error") for i in range(len(calls))]


def test_every_thread_gets_what_it_gets_alone(gpt, switching):
    alone = [call() for call in calls(gpt)]
    assert together(calls(gpt)) == alone
    assert [call() for call in calls(gpt)] == alone


def test_a_real_model_writes_and_is_traced_at_the_same_time(switching):
    gpt = glassgpt.load(SHIPPED, device="cpu")
    texts = ["A robot must", "Once upon a time", "The sea"]

    def traced(text):
        trace = gpt.trace(text)
        return trace.logits_at().tolist(), trace.attention[0, 1].tolist(), trace.token_loss.rank[1:].tolist()

    asked = [
        call
        for text in texts
        for call in (
            lambda text=text: gpt.generate(text, seed=3, max_new_tokens=8).tokens,
            lambda text=text: "".join(gpt.stream(text, seed=4, max_new_tokens=8)),
            lambda text=text: gpt.next(text, k=5),
            lambda text=text: gpt.logits([gpt.encode(text)]).tolist(),
            lambda text=text: traced(text),
        )
    ]
    alone = [call() for call in asked]
    assert together(asked) == alone


def test_one_trace_may_be_asked_by_many_threads(switching):
    gpt = glassgpt.load(SHIPPED, device="cpu")
    text = "A robot must obey the orders given"
    tokens = range(100, 108)

    def questions(trace):
        return [
            *(lambda t=t: trace.append(t).logits_at().tolist() for t in tokens),
            *(lambda: trace.token_loss.rank[1:].tolist() for _ in range(4)),
            *(lambda layer=layer: trace.attention[layer, 0].tolist() for layer in (0, 1)),
        ]

    alone = [question() for question in questions(gpt.trace(text))]
    for expected, found in zip(alone, together(questions(gpt.trace(text))), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_open_stream_keeps_nobody_waiting(gpt):
    stream = gpt.stream("a", **FOREVER)
    next(stream)
    expected = gpt.generate("b", seed=2, max_new_tokens=5).tokens
    asked = [lambda: gpt.generate("b", seed=2, max_new_tokens=5).tokens] * 4
    assert together(asked) == [expected] * 4
    assert next(stream)


def test_a_stream_is_closed_from_another_thread(gpt, switching):
    for _ in range(5):
        stream = gpt.stream("a", **FOREVER)
        begun = threading.Event()

        def read(stream=stream, begun=begun):
            for _ in stream:
                begun.set()

        def close(stream=stream, begun=begun):
            assert begun.wait(FAR_OFF)
            stream.close()

        together([read, close])
        assert list(stream) == []
    assert gpt.generate("a", seed=1, max_new_tokens=5).tokens


class Counted(TinyBackend):
    """Knows how many of its kind, so of their caches, are still there."""

    alive: weakref.WeakSet[TinyBackend]

    def __init__(self, *arguments):
        super().__init__(*arguments)
        Counted.alive.add(self)

    def with_rows(self, rows):
        return Counted(rows, self.config, self.seed, self.device, self.sharpness)


@pytest.mark.parametrize("how", ["closed", "dropped", "read to the end", "broken off by an error"])
def test_streams_give_their_engines_back(how):
    Counted.alive = weakref.WeakSet()
    gpt = GPT(Counted(), LetterTokenizer())
    expected = gpt.generate("a", seed=1, max_new_tokens=5).tokens
    everything = dict.fromkeys(range(VOCAB), float("-inf"))
    settings = {
        "read to the end": {"seed": 1, "max_new_tokens": 3},
        "broken off by an error": {"logit_bias": everything},
    }.get(how, FOREVER)
    streams = [gpt.stream("a", **settings) for _ in range(30)]
    for stream in streams:
        if how == "read to the end":
            list(stream)
        elif how == "broken off by an error":
            with pytest.raises(SettingError):
                next(stream)
        else:
            next(stream)
        if how == "closed":
            stream.close()
    del stream
    if how == "dropped":
        streams.clear()
    gc.collect()
    assert len(Counted.alive) <= 2  # the model's own, and one for the next call
    assert gpt.generate("a", seed=1, max_new_tokens=5).tokens == expected


def test_who_comes_first_has_the_first_turn():
    lock, order, inside = FairLock(), [], threading.Event()

    def busy():
        for i in range(3):
            with lock.hold():
                order.append("busy")
                inside.set()
                while i == 0 and not lock._queue:  # until the other stands in line
                    threading.Event().wait(0.001)

    def once():
        inside.wait(FAR_OFF)
        with lock.hold():
            order.append("once")

    together([busy, once])
    assert order == ["busy", "once", "busy", "busy"]


def test_ctrl_c_in_the_line_leaves_no_gap():
    lock, slow = FairLock(), threading.Event()

    def interrupt(_seconds):
        raise KeyboardInterrupt

    slow.wait = interrupt
    lock._queue.append(slow)
    with pytest.raises(KeyboardInterrupt), lock.hold():
        pass
    assert list(lock._queue) == [slow]
    lock._leave(slow)
    with lock.hold():
        assert not lock._queue


class TestService:
    """With a service, the texts of all threads are computed in one batch."""

    @pytest.fixture
    def served(self, gpt):
        gpt.start_service(8)
        yield gpt
        gpt.stop_service()

    def test_every_thread_gets_what_it_gets_alone(self, gpt, switching):
        alone = [call() for call in calls(gpt)]
        gpt.start_service(8)
        assert together(calls(gpt)) == alone
        gpt.stop_service()
        assert [call() for call in calls(gpt)] == alone

    def test_threads_share_steps(self, served):
        together([lambda i=i: served.generate("ab", seed=i, max_new_tokens=20) for i in range(8)])
        before = served.service.steps
        long = {"max_new_tokens": 40, "ignore_eot": True}
        with served.lock.hold():  # so that all are there before the first step
            threads = [
                threading.Thread(
                    target=served.generate, args=("ab",), kwargs={"seed": i, **long}, daemon=True
                )
                for i in range(8)
            ]
            for thread in threads:
                thread.start()
            while served.service.waiting + served.service.running < 8:
                time.sleep(0.001)
        for thread in threads:
            thread.join(FAR_OFF)
        assert served.service.steps - before < 2 * 40  # alone, each would take 40

    def test_a_stream_that_is_left_frees_its_row(self, served):
        stream = served.stream("ab", **FOREVER)
        next(stream)
        del stream
        other = served.stream("ab", **FOREVER)
        next(other)
        other.close()
        with pytest.raises(StopIteration):
            next(other)
        assert served.generate("ab", seed=1, max_new_tokens=3).tokens
        wait_until_idle(served.service)

    def test_ctrl_c_keeps_what_there_is(self, served, monkeypatch):
        from glassgpt.generate.generation import Interrupted
        from glassgpt.generate.service.handle import ServiceHandle

        read, reads = ServiceHandle.read, []

        def interrupted(self):
            reads.append(1)
            if len(reads) == 4:
                raise KeyboardInterrupt
            return read(self)

        monkeypatch.setattr(ServiceHandle, "read", interrupted)
        with pytest.raises(Interrupted) as caught:
            served.generate(["ab", "cd"], samples=6, **FOREVER)  # twelve texts on eight rows
        found = caught.value.generations
        assert [len(generations) for generations in found] == [6, 6]
        assert {one.finish_reason for generations in found for one in generations} == {"cancelled"}
        assert any(one.tokens for generations in found for one in generations)
        reads.clear()
        stream = served.stream("ab", **FOREVER)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
        assert stream.generation.finish_reason == "cancelled"
        wait_until_idle(served.service)

    def test_mistakes_are_one_line(self, served):
        with pytest.raises(UserError, match="has a service already"):
            served.start_service()
        with pytest.raises(SettingError, match="token id 9999"):
            served.generate([9999])
        service = served.service
        served.stop_service()
        with pytest.raises(UserError, match="closed"):
            service.submit([Job([1], SamplingParams(), print)])

    def test_a_model_that_is_dropped_ends_its_thread(self):
        gpt = GPT(TinyBackend(), LetterTokenizer(), name="tiny")
        thread = gpt.start_service(2)._thread
        del gpt
        gc.collect()
        thread.join(FAR_OFF)
        assert not thread.is_alive()


def wait_until_idle(service):
    for _ in range(FAR_OFF * 100):
        if service.idle:
            return
        time.sleep(0.01)
    pytest.fail("a row was not given back")
