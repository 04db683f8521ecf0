"""Draw tokens without waiting for them: a step's tokens stay on the device until the host reads them.

    pipeline.draw(step, samples, logits)      # queued; the next step may start from `latest_tokens(samples)`
    for drawn in pipeline.read(step): ...     # the reports of each step up to this one

On a CPU the tokens are available immediately, so reading them never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from glassgpt.backends.protocol import Array, Backend, array_namespace
from glassgpt.generate.engine.request import Sample
from glassgpt.generate.sampling.constraints import collect_masks
from glassgpt.generate.sampling.logits_processors import collect_edits
from glassgpt.generate.sampling.sampler import LogitEdits, SamplingMetadata, stack_metadata, token_drawer

Drawn = tuple[Sample, list[float]]  # a sample, and the sampler's report of its token
RANDOM_AHEAD = 64  # random numbers are moved to the device for this many steps at once


@dataclass(eq=False)
class InFlightStep:
    """The tokens drawn in one step, which the host may not have read yet."""

    step: int
    samples: list[Sample]
    tokens: Array  # (B,), on the device
    report: Callable[[], np.ndarray]


@dataclass(eq=False)
class SamplingState:
    """The inputs of sampling for a group of sequences; rebuilt only when the group changes."""

    samples: list[Sample]
    params: SamplingMetadata
    edits: LogitEdits | None
    edits_fixed: bool
    random: Array  # (B, RANDOM_AHEAD)
    used: int = 0


class SamplingPipeline:
    """Draws the next tokens of sequences and keeps the steps that the host has not read."""

    def __init__(self, backend: Backend, vocab_size: int) -> None:
        self.backend = backend
        self.vocab_size = vocab_size
        self._in_flight: deque[InFlightStep] = deque()
        self._state: SamplingState | None = None
        self._draw_tokens = token_drawer(backend)

    def __len__(self) -> int:
        """The number of steps that the host has not read."""
        return len(self._in_flight)

    @property
    def on_device(self) -> bool:
        """Whether reading the last step would wait for a device."""
        return bool(self._in_flight) and not isinstance(self._in_flight[-1].tokens, np.ndarray)

    def clear(self) -> None:
        self._in_flight.clear()
        self._state = None

    def draw(self, step: int, samples: list[Sample], logits: Array) -> None:
        """Draw one more token for each sample from its row of the logits (B, V)."""
        state = self._sampling_state(samples)
        if self.vocab_size < self.backend.config.vocab_size:
            logits = logits[:, : self.vocab_size]
        allowed = None
        if not state.edits_fixed:
            state.edits = collect_edits([s.logits_processor for s in samples], self.backend.array)
            allowed = collect_masks([s.logits_processor.constraint for s in samples], self.vocab_size)
        tokens, report = self._draw_tokens(
            logits, state.params, state.random[:, state.used], state.edits, allowed
        )
        state.used += 1
        in_flight = InFlightStep(step, samples, tokens, self.backend.fetch(report))
        self._in_flight.append(in_flight)
        for index, sample in enumerate(samples):
            sample.latest = (in_flight, index)
            sample.drawn += 1
            sample.step = step

    def _sampling_state(self, samples: list[Sample]) -> SamplingState:
        state = self._state
        if state is None or state.samples != samples:
            state = self._state = self._new_state(samples)
        if state.used == RANDOM_AHEAD:
            ahead = np.stack([s.rng.window(s.drawn, RANDOM_AHEAD) for s in samples])
            state.random, state.used = self.backend.array(ahead), 0
        return state

    def _new_state(self, samples: list[Sample]) -> SamplingState:
        processors, to_device = [s.logits_processor for s in samples], self.backend.array
        fixed = all(processor.fixed for processor in processors)
        return SamplingState(
            samples=samples,
            params=stack_metadata([s.request.settings for s in samples], self.vocab_size, to_device),
            edits=collect_edits(processors, to_device) if fixed else None,
            edits_fixed=fixed,
            random=None,
            used=RANDOM_AHEAD,
        )

    def latest_tokens(self, samples: list[Sample]) -> Array:
        """The last token of each sequence, (B,), without waiting for the device."""
        groups: list[tuple[InFlightStep, list[int]]] = []
        for sample in samples:
            in_flight, index = sample.latest
            if not groups or groups[-1][0] is not in_flight:
                groups.append((in_flight, []))
            groups[-1][1].append(index)
        parts = []
        for in_flight, indices in groups:
            full = indices == list(range(len(in_flight.samples)))
            parts.append(
                in_flight.tokens if full else in_flight.tokens[self.backend.array(np.array(indices))]
            )
        return parts[0] if len(parts) == 1 else array_namespace(*parts).concat(parts)

    def read(self, up_to: int) -> Iterator[list[Drawn]]:
        """The sampler's reports of each step up to `up_to`, waiting for the device if necessary.

        Samples that ended while their step was in flight are left out.
        """
        while self._in_flight and self._in_flight[0].step <= up_to:
            in_flight = self._in_flight.popleft()
            report = in_flight.report().tolist()  # (B, 1 + [1 + 2n])
            both = zip(in_flight.samples, report, strict=True)
            yield [(sample, values) for sample, values in both if not sample.finished]
