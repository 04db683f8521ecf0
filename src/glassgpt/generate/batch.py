"""The texts of a batch of prompts: sampled together by an engine, or found by beam search."""

from __future__ import annotations

from glassgpt.errors import SettingError
from glassgpt.generate.beam import beam_search
from glassgpt.generate.engine.handle import PromptEvent
from glassgpt.generate.engine.pool import EnginePool
from glassgpt.generate.generation import Generation, Interrupted, order_samples
from glassgpt.generate.sampling.logits_processors import MakeRule
from glassgpt.generate.sampling.params import SamplingParams


def generate_batch(
    engines: EnginePool, prompts: list[list[int]], settings: SamplingParams, rule: MakeRule | None = None
) -> list[list[Generation]]:
    """The texts of each prompt in order: best first if they are ranked. Ctrl-C raises `Interrupted`."""
    if settings.beams is None:
        return _sample(engines, prompts, settings, rule)
    if rule is not None:
        raise SettingError("a rule needs sampling. Leave out beams.")
    return _search(engines, prompts, settings, settings.beams)


def _search(
    engines: EnginePool, prompts: list[list[int]], settings: SamplingParams, beams: int
) -> list[list[Generation]]:
    searched: list[list[Generation]] = []
    engine = engines.acquire_all(beams)
    try:
        for ids in prompts:
            with engines.lock.hold():
                searched.append(beam_search(engine.backend, ids, settings, engines.tokenizer))
    except Interrupted as interrupt:
        raise Interrupted(searched + interrupt.generations) from None
    finally:
        engines.release(engine)
    return searched


def _sample(
    engines: EnginePool, prompts: list[list[int]], settings: SamplingParams, rule: MakeRule | None
) -> list[list[Generation]]:
    samples: list[list[Generation]] = [[] for _ in prompts]
    handle = engines.open(prompts, settings, rule)

    def keep(events: list[PromptEvent]) -> int:
        """Keep the texts that these events finish; return their number."""
        finished = [(prompt, event.generation) for prompt, event in events if event.generation is not None]
        for prompt, generation in finished:
            samples[prompt].append(generation)
        return len(finished)

    def in_order() -> list[list[Generation]]:
        return [order_samples(generations, settings) for generations in samples]

    try:
        unfinished = len(prompts) * settings.candidates
        while unfinished:
            unfinished -= keep(handle.read())
    except KeyboardInterrupt:
        keep(handle.stop())
        raise Interrupted(in_order()) from None
    finally:
        handle.close()
    return in_order()
