"""The service: fair, bounded, and what it computes for one job does not depend on the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import glassgpt
from glassgpt.errors import QueueFullError, SettingError, UserError
from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.engine.fair_lock import FairLock
from glassgpt.generate.generation import Event, Generation
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.service.admission import WaitEstimator
from glassgpt.generate.service.fair_queue import FairQueue, QueueLimits
from glassgpt.generate.service.service import Job, Service, Update
from glassgpt.gpt import GPT
from tests.conftest import SHIPPED

PATIENCE = 300
PROMPTS = ["The king", "The old house stood at the end of the lane, and", "A", "Once upon a time"]


class Item:
    def __init__(self, client: str, name: str, tokens: int = 1) -> None:
        self.client, self.name, self.tokens = client, name, tokens


def drain(items: FairQueue[Any]) -> str:
    names = []
    while (item := items.peek()) is not None:
        names.append(item.name)
        items.end_turn(remove=True)
    assert (len(items), items.tokens) == (0, 0)
    return "".join(names)


def test_clients_take_turns() -> None:
    items: FairQueue[Any] = FairQueue()
    items.push([Item("a", name) for name in "1234"])
    items.push([Item("b", "x"), Item("c", "y"), Item("b", "z")])
    assert drain(items) == "1xy2z34"


def test_an_item_that_is_kept_waits_for_its_client_s_next_turn() -> None:
    items: FairQueue[Any] = FairQueue()
    items.push([Item("a", "1"), Item("a", "2"), Item("b", "x"), Item("b", "y")])
    items.end_turn(remove=False)
    assert drain(items) == "x1y2"


def test_the_queue_is_bounded_in_requests_and_tokens() -> None:
    items: FairQueue[Any] = FairQueue(QueueLimits(max_requests=3, max_tokens=100))
    items.push([Item("a", name, 20) for name in "12"])
    with pytest.raises(QueueFullError, match="2 requests"):
        items.push([Item("b", name) for name in "34"])
    items.push([Item("b", name) for name in "34"], room=1)  # one of them does not wait
    with pytest.raises(QueueFullError, match="42 tokens"):
        items.push([Item("c", "5", 59)], room=9)
    assert len(items) == 4
    drain(items)
    items.push([Item("a", "1", 1000) for _ in range(9)])  # an empty queue takes any batch


def test_what_comes_before_a_client_s_next_item() -> None:
    items: FairQueue[Any] = FairQueue()
    items.push([Item("a", name) for name in "1234"])
    items.push([Item("b", "x")])
    assert "".join(item.name for item in items.ahead("c")) == "1x"
    assert "".join(item.name for item in items.ahead("b")) == "12x"
    assert "".join(item.name for item in items.ahead("a")) == "1234x"


def test_items_are_removed_wherever_they_stand() -> None:
    items: FairQueue[Any] = FairQueue()
    made = [Item("a", "1"), Item("b", "2"), Item("a", "3")]
    items.push(made)
    assert items.remove(made[2])
    assert not items.remove(made[2])
    assert items.remove(made[1])
    assert drain(items) == "1"


@pytest.fixture(scope="module")
def gpt() -> GPT:
    return glassgpt.load(SHIPPED, device="cpu", dtype="float32")


@pytest.fixture
def service(gpt: GPT) -> Iterator[Service]:
    made = Service(Engine(gpt.backend.with_rows(4), gpt.tokenizer), QueueLimits(8, 10_000), FairLock())
    yield made
    made.close()


class Inbox:
    def __init__(self) -> None:
        self.updates: queue.SimpleQueue[list[Update]] = queue.SimpleQueue()

    def job(self, gpt: GPT, prompt: str, client: str = "", **settings: Any) -> Job:
        return Job(gpt.encode(prompt), SamplingParams(**settings), self.updates.put, client)

    def next(self) -> list[Update]:
        return self.updates.get(timeout=PATIENCE)

    def collect(self, jobs: list[Job]) -> list[list[Generation]]:
        """The generations of each job by sample, when all are finished."""
        found: dict[Job, list[Generation]] = {job: [] for job in jobs}
        while any(len(found[job]) < job.samples for job in jobs):
            for update in self.next():
                assert update.error is None
                if update.event is not None and update.event.generation is not None:
                    found[update.job].append(update.event.generation)
        return [sorted(found[job], key=lambda one: one.sample) for job in jobs]


@pytest.mark.slow
def test_jobs_in_parts_and_together_get_what_they_get_alone(service: Service, gpt: GPT) -> None:
    inbox = Inbox()
    settings = {"max_new_tokens": 12, "samples": 6, "seed": 5, "logprobs": 1, "prompt_logprobs": 1}
    jobs = [inbox.job(gpt, prompt, client=prompt, **settings) for prompt in PROMPTS]
    service.submit(jobs)  # 24 sequences on 4 rows: every job is started in parts
    for prompt, generations in zip(PROMPTS, inbox.collect(jobs), strict=True):
        alone = gpt.generate(prompt, **settings).samples
        assert [one.text for one in generations] == [one.text for one in alone]
        assert [one.tokens for one in generations] == [one.tokens for one in alone]
        assert generations[0].prompt_logprobs is not None
    assert service.idle


def test_a_cancelled_job_frees_its_rows(service: Service, gpt: GPT) -> None:
    inbox = Inbox()
    endless = [inbox.job(gpt, "A", max_new_tokens=1000, ignore_eot=True, samples=2) for _ in range(4)]
    service.submit(endless)
    inbox.next()
    service.cancel(endless)
    before = service.steps
    last = inbox.job(gpt, "The king", client="b", max_new_tokens=3, temperature=0)
    service.submit([last])
    assert finished(inbox, last)
    assert service.steps - before < 100  # not the 1,000 of the others
    assert service.idle


def finished(inbox: Inbox, job: Job) -> bool:
    while True:
        for update in inbox.next():
            if update.job is job and update.event is not None and update.event.generation is not None:
                return True


def test_what_the_engine_refuses_is_an_update(service: Service, gpt: GPT) -> None:
    inbox = Inbox()
    job = Job([10**6], SamplingParams(), inbox.updates.put)
    service.submit([job])
    ((update,),) = [inbox.next()]
    assert update.job is job
    assert isinstance(update.error, SettingError)
    assert service.idle


def test_grammars_are_compiled_by_who_submits_them(
    service: Service, gpt: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    compilers, compile_settings = [], service.engine.compile

    def noting(settings: SamplingParams) -> Any:
        compilers.append(threading.current_thread())
        return compile_settings(settings)

    monkeypatch.setattr(service.engine, "compile", noting)
    inbox = Inbox()
    job = inbox.job(gpt, "A", choice=["yes", "no"], max_new_tokens=9, samples=6, seed=1)
    service.submit([job])  # more samples than rows: it is started in parts
    ((*generations,),) = inbox.collect([job])
    assert {one.text for one in generations} <= {"yes", "no"}
    assert set(compilers) == {threading.current_thread()}
    with pytest.raises(SettingError, match="cannot be used"):
        service.submit([inbox.job(gpt, "A", regex="(")])
    assert service.idle


def test_the_bound_holds_while_rows_are_busy(service: Service, gpt: GPT) -> None:
    inbox = Inbox()
    jobs = [inbox.job(gpt, "A", max_new_tokens=100, ignore_eot=True) for _ in range(12)]
    with service.lock.hold():  # no step is taken meanwhile
        service.submit(jobs)
        while service.running < 4:  # and the other eight wait
            time.sleep(0.001)
        with pytest.raises(QueueFullError):
            service.submit([inbox.job(gpt, "B", max_new_tokens=1)])
    service.cancel(jobs)


class TenSecondSteps(WaitEstimator):
    decode_s, read_s = 10.0, 0.0  # type: ignore[assignment]


def test_a_job_that_would_wait_too_long_is_refused(gpt: GPT) -> None:
    engine, lock, inbox = Engine(gpt.backend.with_rows(2), gpt.tokenizer), FairLock(), Inbox()
    service = Service(engine, QueueLimits(max_wait=5), lock)
    service.speed = TenSecondSteps()
    try:
        endless = [inbox.job(gpt, "A", max_new_tokens=1000, ignore_eot=True) for _ in range(2)]
        with lock.hold():
            service.submit(endless[:1])
            service.submit(endless[1:])  # a row is free
        while service.running < 2:
            inbox.next()
        with lock.hold():  # no step is taken meanwhile
            left = min(engine.tokens_left)
            assert service.expected_wait() == 10 * left
            with pytest.raises(QueueFullError, match="at most 5 are") as refusal:
                service.submit([inbox.job(gpt, "B", max_new_tokens=1)])
            assert refusal.value.retry_after == 10 * left - 5
            assert service.waiting == 0
        service.cancel(endless[:1])
        while service.running == 2:
            inbox.next()
        last = inbox.job(gpt, "B", max_new_tokens=1)
        service.submit([last])
        assert finished(inbox, last)
    finally:
        service.close()


def test_a_step_that_fails_fails_its_jobs_and_not_the_service(
    service: Service, gpt: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, go = Inbox(), threading.Event()
    step = service.engine.step

    def broken() -> list[Event]:
        assert go.wait(PATIENCE)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(service.engine, "step", broken)
    jobs = [inbox.job(gpt, prompt, samples=3) for prompt in PROMPTS]
    service.submit(jobs)
    go.set()
    failed = set()
    while len(failed) < len(jobs):
        for update in inbox.next():
            assert isinstance(update.error, RuntimeError)
            failed.add(update.job)
    monkeypatch.setattr(service.engine, "step", step)
    again = inbox.job(gpt, "The king", max_new_tokens=4, temperature=0)
    service.submit([again])
    ((generation,),) = inbox.collect([again])
    assert generation.text == gpt.generate("The king", max_new_tokens=4, temperature=0).text


def test_closing_fails_what_is_left(gpt: GPT) -> None:
    service, inbox = Service(Engine(gpt.backend.with_rows(1), gpt.tokenizer)), Inbox()
    endless = {"max_new_tokens": 1000, "samples": 100, "ignore_eot": True}
    jobs = [inbox.job(gpt, "A", **endless) for _ in range(3)]
    service.submit(jobs)
    inbox.next()
    service.close()
    failed = set()
    while len(failed) < 3:
        failed |= {update.job for update in inbox.next() if isinstance(update.error, UserError)}
    with pytest.raises(UserError, match="closed"):
        service.submit(jobs)
