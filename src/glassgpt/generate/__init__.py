"""Logits to text: settings, the sampler, the batching engine, beam search."""

from glassgpt.generate.engine import Engine
from glassgpt.generate.generation import Event, Generation
from glassgpt.generate.settings import Settings

__all__ = ["Engine", "Event", "Generation", "Settings"]
