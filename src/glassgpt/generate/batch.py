"""The texts of a batch of prompts: sampled by an engine, all side by side, or found by beam search."""

from __future__ import annotations

from collections.abc import Callable

from glassgpt.errors import SettingError
from glassgpt.generate.beam import beam_search
from glassgpt.generate.engine_pool import EnginePool
from glassgpt.generate.generation import Generation, Interrupted, best
from glassgpt.generate.logits_processors import TokenRule
from glassgpt.generate.settings import Settings

Rule = Callable[[], TokenRule]  # makes one for each text


def generate_batch(
    engines: EnginePool, prompts: list[list[int]], settings: Settings, rule: Rule | None = None
) -> list[list[Generation]]:
    """For each prompt its texts in order, best first where they are ranked. Ctrl-C raises `Interrupted`."""
    if settings.beams is None:
        return _sample(engines, prompts, settings, rule)
    if rule is not None:
        raise SettingError("a rule needs sampling. Leave out beams.")
    return _search(engines, prompts, settings, settings.beams)


def _search(
    engines: EnginePool, prompts: list[list[int]], settings: Settings, beams: int
) -> list[list[Generation]]:
    found: list[list[Generation]] = []
    engine = engines.acquire_all(beams)
    try:
        for ids in prompts:
            with engines.lock.hold():
                found.append(beam_search(engine.backend, ids, settings, engines.tokenizer))
    except Interrupted as interrupt:
        raise Interrupted(found + interrupt.found) from None
    finally:
        engines.release(engine)
    return found


def _sample(
    engines: EnginePool, prompts: list[list[int]], settings: Settings, rule: Rule | None
) -> list[list[Generation]]:
    found: list[list[Generation]] = [[] for _ in prompts]
    requests: dict[int, list[Generation]] = {}
    engine = engines.acquire(len(prompts) * settings.candidates)

    def step() -> None:
        with engines.lock.hold():
            events = engine.step()
        for event in events:
            if event.error is not None:
                raise event.error
            if event.generation is not None:
                requests[event.request].append(event.generation)

    def in_order() -> list[list[Generation]]:
        if settings.best_of is not None:
            return [best(generations, settings.samples) for generations in found]
        return [sorted(generations, key=lambda generation: generation.sample) for generations in found]

    try:
        for ids, generations in zip(prompts, found, strict=True):
            requests[engine.add(ids, settings, rule)] = generations
        while engine.busy:
            step()
    except KeyboardInterrupt:
        for number in requests:
            engine.cancel(number)
        if engine.busy:
            step()
        raise Interrupted(in_order()) from None
    finally:
        engines.release(engine)
    return in_order()
