"""Logits to text: settings, the sampler, the batching engine, beam search."""

from glassgpt.generate.engine.engine import Engine
from glassgpt.generate.generation import Event, Generation
from glassgpt.generate.sampling.params import SamplingParams

__all__ = ["Engine", "Event", "Generation", "SamplingParams"]
